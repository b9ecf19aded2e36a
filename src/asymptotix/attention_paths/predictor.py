"""Prediction at a given order parameter: a Gaussian process whose kernel is the sum over pairs of paths.

The kernel, the mean and the variance (of f itself, without label noise), with d the number of paths:

    K(x, x') = (s2/d) sum_{pi, pi'} U^{pi pi'} xi^pi(x) . xi^pi'(x') / N_0
    mean = k^T (K + T)^{-1} Y
    variance = K(x, x) - k^T (K + T)^{-1} k
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ..core.linalg import psd_sqrt


class Prediction(NamedTuple):
    """Mean and variance of the output, (examples,) each."""

    mean: np.ndarray
    variance: np.ndarray


class Predictor:
    """The posterior at an order parameter, ready for new inputs.

    Parameters
    ----------
    xi : array (P, d, N_0)
        Attended inputs of the training examples.
    labels : array (P,)
    U : array (d, d)
        Order parameter.
    temperature, prior_variance : float
    """

    def __init__(
        self, xi: np.ndarray, labels: np.ndarray, U: np.ndarray, temperature: float, prior_variance: float
    ) -> None:
        self._root = psd_sqrt(U) * np.sqrt(prior_variance / (U.shape[0] * xi.shape[-1]))
        self._train = self._features(xi)
        self.kernel = self._train @ self._train.T
        self._factor = cho_factor(self.kernel + temperature * np.eye(len(labels)), lower=True)
        self._dual = cho_solve(self._factor, labels)
        self.labels = labels

    def _features(self, xi: np.ndarray) -> np.ndarray:
        return np.einsum("pa,npk->nak", self._root, xi, optimize=True).reshape(len(xi), -1)

    def __call__(self, xi: np.ndarray) -> Prediction:
        """Mean and variance at attended inputs (examples, d, N_0)."""
        features = self._features(xi)
        cross = features @ self._train.T
        explained = solve_triangular(self._factor[0], cross.T, lower=True)
        own = np.einsum("nk,nk->n", features, features)
        return Prediction(cross @ self._dual, np.maximum(own - (explained**2).sum(0), 0.0))

    def alignment(self, count: int) -> np.ndarray:
        """|e_r . Y|/sqrt(P) for the eigenvectors e_r of the kernel, by falling eigenvalue: kernel-task alignment."""
        values, vectors = np.linalg.eigh(self.kernel)
        order = np.argsort(values)[::-1][: min(count, len(values))]
        return abs(vectors[:, order].T @ self.labels) / np.sqrt(len(self.labels))
