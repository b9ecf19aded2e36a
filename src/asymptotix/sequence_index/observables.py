"""Observables computed from the overlap: prediction errors and the free entropy.

Troiani et al., arXiv:2502.00901, Theorem 2.1, eqs. (10) and (11).

Equations si-free-entropy, si-test, si-plugin of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import numpy as np

from ..numerics.linear_algebra import mixed_rows, psd_sqrt
from ..numerics.quadrature import Estimate, randomised_average
from . import streams
from .channels.protocol import Averages, Channel

#: Number of nodes per randomisation for a prediction error, and number of randomisations. With four randomisations the
#: true error would exceed seven error bars in one case of 150; with sixteen, in one of 10^5.
PREDICTION_NODES, RANDOMISATIONS = 2**12, 16
#: Number of nodes per randomisation for the change of a prediction error with the overlap.
_DIFFERENCE_NODES = 2**9


def prediction_errors(channel: Channel, V: np.ndarray, spread: np.ndarray | None = None) -> Estimate:
    """Return the Bayes error and the plug-in error of the output g, as arrays (2,) of values and numerical errors.

    With omega = sqrt(Q) xi, Z = omega + sqrt(V) n and Z' = omega + sqrt(V) n' (xi, n, n' standard normal),

        Bayes:    E|g(Z)|^2 - E<g(Z), g(Z')> = 1/2 E|g(Z) - g(Z')|^2      (the posterior mean of g),
        plug-in:  E|g(Z) - g(omega)|^2                                     (g of the posterior mean).

    Parameters
    ----------
    V : array (P, P)
        Posterior variance I - Q.
    spread : array (P,) or (P, P), optional
        Numerical error of the overlap; its effect on both errors is added to their numerical errors.
    """
    moved = None if spread is None or not (spread > 0).any() else _moved(V, spread)

    def errors(nodes: np.ndarray) -> np.ndarray:
        here = _squared_errors(channel, V, nodes)
        if moved is None:
            return here
        # The difference on common nodes has little noise, so that the first nodes suffice.
        few, change = slice(_DIFFERENCE_NODES), np.zeros_like(here)
        change[few] = _squared_errors(channel, moved, nodes[few]) - here[few]
        return np.concatenate([here, change * (len(nodes) / len(nodes[few]))], axis=1)

    size = 3 * channel.indices * channel.tokens
    found = randomised_average(
        errors, PREDICTION_NODES, size, randomisations=RANDOMISATIONS, seed=streams.PREDICTION_NODES
    )
    error = found.error[:2] if moved is None else np.hypot(found.error[:2], found.value[2:])
    return Estimate(found.value[:2], error)


def _moved(V: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return V (P, P) with every eigenvalue raised, up to 1, by as much as errors ``spread`` of its entries allow."""
    spread = np.diag(spread) if spread.ndim == 1 else spread
    values, vectors = np.linalg.eigh(V)
    along = np.einsum("ik,ij,jk->k", abs(vectors), spread, abs(vectors))
    return (vectors * (values + along).clip(1e-12, 1.0)) @ vectors.T


def _squared_errors(channel: Channel, V: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return numbers (n, 2) whose averages over standard normal nodes (n, 3 P M) are Bayes and plug-in error."""
    P, M = channel.indices, channel.tokens
    root_q, root_v = psd_sqrt(np.eye(P) - V, scale=1.0), psd_sqrt(V)
    field, first, second = (nodes[:, k * P * M : (k + 1) * P * M].reshape(-1, P, M) for k in range(3))
    omega = mixed_rows(root_q, field)
    y, other = (channel.output(omega + mixed_rows(root_v, n)) for n in (first, second))
    return np.stack([0.5 * _squares(y - other), _squares(y - channel.output(omega))]).T


def _squares(difference: np.ndarray) -> np.ndarray:
    return (difference.reshape(len(difference), -1) ** 2).sum(1)


def free_entropy(
    V: np.ndarray, alpha: float, averages: Averages, side_information: float = 0.0, evidence_error: float = 0.0
) -> Estimate:
    """Return Phi(Q) = 1/2 sum_k [log(v_k/(1-l)) + 1 - v_k/(1-l)] + alpha E log Z_out and its numerical error.

    v_k are the eigenvalues of V = I - Q, a matrix (P, P), or a vector (P,) if it is diagonal; l is the overlap of the
    side information. E log Z_out is the mean of ``averages.log_evidence`` over randomisations; ``evidence_error`` is
    its error in addition to their scatter. The stationary points of Phi are the fixed points of state evolution:
    d Phi/dQ = (alpha E[g g^T] - Qhat)/2, Qhat = V^{-1} - I/(1-l). For l = 0 the sum is log det(I-Q) + Tr Q.
    """
    v = V if V.ndim == 1 else np.linalg.eigvalsh(V)
    ratio = v / (1 - side_information)
    evidence = averages.log_evidence
    value = 0.5 * (np.log(ratio) + 1 - ratio).sum() + alpha * evidence.mean()
    scatter = evidence.std(ddof=1) / np.sqrt(len(evidence)) if len(evidence) > 1 else 0.0
    error = max(alpha * np.hypot(scatter, evidence_error), 1e-9)
    return Estimate(np.asarray(value), np.asarray(error))
