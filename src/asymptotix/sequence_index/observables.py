"""What is read off the overlap: prediction errors and the free entropy.

Troiani et al., arXiv:2502.00901, Theorem 2.1, eqs. (10) and (11).

Equations si-free-entropy, si-test, si-plugin of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import numpy as np

from ..numerics.linear_algebra import mixed_rows, psd_sqrt
from ..numerics.quadrature import Estimate, randomised_average
from . import streams
from .channels.protocol import Averages, Channel

#: Nodes per randomisation of a prediction error.
PREDICTION_NODES = 2**13
#: Of its change with the overlap.
_DIFFERENCE_NODES = 2**9


def prediction_errors(channel: Channel, V: np.ndarray, spread: np.ndarray | None = None) -> Estimate:
    """Bayes and plug-in error, in this order, at posterior variance V = I - Q.

    With Z, Z' two indices of the same field omega (Z = sqrt(Q) xi + sqrt(V) n),

        Bayes:    E|g(Z)|^2 - E<g(Z), g(Z')> = 1/2 E|g(Z) - g(Z')|^2      (the posterior mean of g),
        plug-in:  E|g(Z) - g(omega)|^2                                     (g of the posterior mean).

    Parameters
    ----------
    V : array (P, P)
    spread : array (P,) or (P, P), optional
        Numerical error of the overlap; what it does to the errors is added to their own.
    """
    value, error = _prediction_errors(channel, V)
    if spread is not None and (spread > 0).any():
        # A difference on common nodes: fewer of them tell it.
        here, there = (_prediction_errors(channel, at, _DIFFERENCE_NODES).value for at in (V, _moved(V, spread)))
        error = np.hypot(error, abs(there - here))
    return Estimate(value, error)


def _moved(V: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """V with each of its principal variances larger by (at most) the error of its entries."""
    spread = np.diag(spread) if spread.ndim == 1 else spread
    values, vectors = np.linalg.eigh(V)
    along = np.einsum("ik,ij,jk->k", abs(vectors), spread, abs(vectors))
    return (vectors * (values + along).clip(1e-12, 1.0)) @ vectors.T


def _prediction_errors(channel: Channel, V: np.ndarray, count: int = PREDICTION_NODES) -> Estimate:
    P, M = channel.indices, channel.tokens
    root_q, root_v = psd_sqrt(np.eye(P) - V, scale=1.0), psd_sqrt(V)

    def errors(nodes: np.ndarray) -> np.ndarray:
        field, first, second = (nodes[:, k * P * M : (k + 1) * P * M].reshape(-1, P, M) for k in range(3))
        omega = mixed_rows(root_q, field)
        y, other = (channel.output(omega + mixed_rows(root_v, n)) for n in (first, second))
        return np.stack([0.5 * _squares(y - other), _squares(y - channel.output(omega))]).T

    return randomised_average(errors, count, 3 * P * M, randomisations=4, seed=streams.PREDICTION_NODES)


def _squares(difference: np.ndarray) -> np.ndarray:
    return (difference.reshape(len(difference), -1) ** 2).sum(1)


def free_entropy(
    V: np.ndarray, alpha: float, averages: Averages, side_information: float = 0.0, evidence_error: float = 0.0
) -> Estimate:
    """Phi(Q) = 1/2 sum_k [log(v_k/(1-l)) + 1 - v_k/(1-l)] + alpha E log Z_out, v_k the eigenvalues of V = I - Q.

    Its stationary points are the fixed points of state evolution: d Phi/dQ = (alpha E[g g^T] - Qhat(Q))/2. Without
    side information the first term is (log det(I-Q) + Tr Q)/2. V is a matrix (P, P), or a vector where it is diagonal;
    ``evidence_error`` is that of E log Z_out beyond its scatter.
    """
    v = V if V.ndim == 1 else np.linalg.eigvalsh(V)
    ratio = v / (1 - side_information)
    evidence = averages.log_evidence
    value = 0.5 * (np.log(ratio) + 1 - ratio).sum() + alpha * evidence.mean()
    scatter = evidence.std(ddof=1) / np.sqrt(len(evidence)) if len(evidence) > 1 else 0.0
    error = max(alpha * np.hypot(scatter, evidence_error), 1e-9)
    return Estimate(np.asarray(value), np.asarray(error))
