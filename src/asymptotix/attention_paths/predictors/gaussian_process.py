"""Prediction at a given order parameter: a Gaussian process whose kernel is a sum over pairs of paths.

With d paths, C outputs c, temperature T, prior variance s_0 of the projection and training examples mu, the kernel K,
the mean and the variance of the output f (without label noise) at a new input x are

    K^{cc'}(x, x') = (s_0/d) sum_{pi, pi'} U^{(pi c),(pi' c')} xi^pi(x) . xi^pi'(x') / N_0
    mean^c = sum_{mu c'} k^{c,(mu c')} v^{mu c'},    v = (K + T)^{-1} Y
    variance^c = K^{cc}(x, x) - k^c (K + T)^{-1} k^c.

K without arguments is that between training examples, k^c = K(x, training examples). The mean is linear in the attended
inputs, mean^c = sum_pi w^{pi c} . xi^pi(x).

Tiberi et al., arXiv:2405.15926, eqs. (9) and (10), for the variance eqs. (29) to (31), with one output. The paper's
kernel has no factor s_0; every prior variance is one there.

Equation ap-predict of docs/theory/attention_paths.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular


class Prediction(NamedTuple):
    """Mean and variance of the output, each (examples,) or (examples, outputs)."""

    mean: np.ndarray
    variance: np.ndarray


class Predictor:
    """Predictor at one order parameter: the Gaussian process given the training data.

    Parameters
    ----------
    xi : array (P, d, N_0)
        Attended inputs of the training examples.
    labels : array (P,) or (P, C)
        Labels of P examples, with C outputs.
    U : array (d, d) or (d, C, d, C)
        Order parameter, positive semi-definite.
    temperature : float
    prior_variance : float
        s_0, the prior variance of the projection.
    """

    def __init__(
        self, xi: np.ndarray, labels: np.ndarray, U: np.ndarray, temperature: float, prior_variance: float
    ) -> None:
        P, d, N0 = xi.shape
        self.xi, self.labels, self.temperature, self.prior_variance = xi, labels, temperature, prior_variance
        self._outputs = 1 if labels.ndim == 1 else labels.shape[1]
        self._U = U.reshape(d, self._outputs, d, self._outputs) * (prior_variance / (d * N0))
        self._train = xi.reshape(P, -1)
        K = np.concatenate([self._cross(xi, c) for c in range(self._outputs)])
        self._kernel = 0.5 * (K + K.T)
        self._factor = cho_factor(self._kernel + temperature * np.eye(len(K)), lower=True)
        dual = cho_solve(self._factor, labels.T.ravel()).reshape(self._outputs, P)
        projected = (dual @ self._train).reshape(self._outputs, d, N0)
        self._weights = np.einsum("pcqe,eqk->cpk", self._U, projected, optimize=True).reshape(self._outputs, -1)

    def __call__(self, xi: np.ndarray) -> Prediction:
        """Return mean and variance of the output at attended inputs xi (examples, d, N_0)."""
        mean = xi.reshape(len(xi), -1) @ self._weights.T
        variance = np.stack([self._variance(xi, c) for c in range(self._outputs)], axis=1)
        shape = (len(xi), *self.labels.shape[1:])
        return Prediction(mean.reshape(shape), variance.reshape(shape))

    @property
    def path_weights(self) -> np.ndarray:
        """Weights w, (d, N_0) or (C, d, N_0), of the mean prediction sum_pi w^pi . xi^pi(x)."""
        rows = self._weights.reshape(self._outputs, *self.xi.shape[1:])
        return rows[0] if self.labels.ndim == 1 else rows

    @property
    def kernel(self) -> np.ndarray:
        """K between the training examples, (P, P) or (C, P, C, P)."""
        P, C = self.labels.shape[0], self._outputs
        return self._kernel if self.labels.ndim == 1 else self._kernel.reshape(C, P, C, P)

    def alignment(self, count: int) -> np.ndarray:
        """Return |e_r . Y|/sqrt(P C) for the labels Y and the kernel's ``count`` leading unit eigenvectors e_r."""
        values, vectors = np.linalg.eigh(self._kernel)
        order = np.argsort(values)[::-1][: min(count, len(values))]
        return abs(vectors[:, order].T @ self.labels.T.ravel()) / np.sqrt(self.labels.size)

    def _cross(self, xi: np.ndarray, c: int) -> np.ndarray:
        """Return the kernel of output c at new inputs with the training examples' outputs, (new, C P), outputs slow."""
        blocks = [_mixed(self._U[:, c, :, other], xi) @ self._train.T for other in range(self._outputs)]
        return np.concatenate(blocks, axis=1)

    def _variance(self, xi: np.ndarray, c: int) -> np.ndarray:
        own = np.einsum("nk,nk->n", _mixed(self._U[:, c, :, c], xi), xi.reshape(len(xi), -1))
        explained = solve_triangular(self._factor[0], self._cross(xi, c).T, lower=True)
        return np.maximum(own - (explained**2).sum(0), 0.0)


def _mixed(block: np.ndarray, xi: np.ndarray) -> np.ndarray:
    """Return sum_pi U_{pi pi'} xi^pi for every pi', (examples, d N_0); ``block`` is U, (d, d)."""
    return np.matmul(block.T, xi).reshape(len(xi), -1)


class NoPrediction:
    """Predictor of a point without an order parameter, such as a failed one: all its predictions are nan."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels

    def __call__(self, xi: np.ndarray) -> Prediction:
        nothing = np.full((len(xi), *self.labels.shape[1:]), np.nan)
        return Prediction(nothing, nothing)

    @property
    def kernel(self) -> np.ndarray:
        shape = self.labels.shape[::-1]
        return np.full((*shape, *shape), np.nan)

    def alignment(self, count: int) -> np.ndarray:
        return np.full(min(count, self.labels.size), np.nan)
