"""Predictions averaged over draws of the posterior: draws of order parameters, or of path weights.

Given U, the output at a new input is Gaussian with mean m(U) = k^T (K + T I)^-1 Y and covariance
v(U) = K** - k^T (K + T I)^-1 k, with the kernel K between training examples, k between training and new input, K** of
the new input, and the temperature T. Over draws of U, the mean is E_U[m] and the variance E_U[v] + Var_U[m].

The saddle point of Tiberi et al., arXiv:2405.15926, eqs. (29) and (30), has a single U and leaves out Var_U[m].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ...numerics.threads import one_blas_thread
from .gaussian_process import Prediction, Predictor

#: Most test examples in a chunk, and most bytes of the path-path tensor between a chunk and the training examples.
#: Larger: more memory. Smaller: slower.
_CHUNK = 512
_TENSOR_BYTES = 128 * 2**20


@dataclass(frozen=True, eq=False)
class DrawsPredictor:
    """Predictor from the draws of one chain: draws of the path weights if there are any, otherwise draws of U.

    There are d paths, C outputs and N0 features.

    Parameters
    ----------
    at_mean : Predictor
        Predictor at the mean order parameter. K is linear in U, so its kernel is the mean kernel of the draws.
    order_parameter_draws : array (draws, d, d) or (draws, d, C, d, C)
    path_weights_draws : array (draws, d, N0) or (draws, d, C, N0), optional
    """

    at_mean: Predictor
    order_parameter_draws: np.ndarray
    path_weights_draws: np.ndarray | None = None

    def __call__(self, xi: np.ndarray) -> Prediction:
        """Return mean and variance of the output at attended inputs xi (examples, d, N0)."""
        if self.path_weights_draws is not None:
            return predict_path_weights(self.path_weights_draws, xi)
        at = self.at_mean
        return predict_draws(at.xi, at.labels, self.order_parameter_draws, at.temperature, at.prior_variance, xi)

    @property
    def kernel(self) -> np.ndarray:
        """Kernel between the training examples, (P, P) or (C, P, C, P), averaged over the draws."""
        return self.at_mean.kernel

    def alignment(self, count: int) -> np.ndarray:
        """Return the overlaps of the labels with the ``count`` leading eigenvectors of the mean kernel."""
        return self.at_mean.alignment(count)


def predict_draws(
    xi_train: np.ndarray, labels: np.ndarray, draws: np.ndarray, temperature: float, s_0: float, xi_new: np.ndarray
) -> Prediction:
    """Return mean and variance of the output at new inputs, over draws of the order parameter U.

    Parameters
    ----------
    xi_train : array (P, d, N0)
        Attended inputs of the training examples.
    labels : array (P,) or (P, C)
    draws : array (draws, d, d), or (draws, d, C, d, C)
        Draws of the order parameter.
    temperature : float
    s_0 : float
        Prior variance of the projection V0.
    xi_new : array (examples, d, N0)
        Attended inputs to predict at.
    """
    d, outputs = xi_train.shape[1], labels.reshape(len(labels), -1).shape[1]
    U = draws.reshape(len(draws), d, outputs, d, outputs)
    scale = math.sqrt(s_0 / (d * xi_train.shape[2]))
    train, new = scale * xi_train, scale * xi_new
    own = _KernelOfDraw(train, train)
    parts = []
    for chunk in _chunks(new, len(train) * d * d):
        cross, diagonal = _KernelOfDraw(chunk, train), np.einsum("npk,nqk->npq", chunk, chunk)
        with one_blas_thread(labels.size):
            found = [_at(u, own, cross, diagonal, labels.reshape(-1), temperature) for u in U]
        means, variances = (np.stack([one[k] for one in found]) for k in (0, 1))
        parts.append((means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)))
    mean, variance = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    shape = (len(xi_new), *labels.shape[1:])
    return Prediction(mean.reshape(shape), variance.reshape(shape))


def predict_path_weights(draws: np.ndarray, xi_new: np.ndarray) -> Prediction:
    """Return mean and variance of the output at new inputs, over draws of the path weights.

    Parameters
    ----------
    draws : array (draws, d, N0) or (draws, d, C, N0)
        w with f(x) = sum_pi w^pi . xi^pi(x).
    xi_new : array (examples, d, N0)
        Attended inputs xi to predict at.
    """
    count, d, *outputs, features = draws.shape
    columns = np.moveaxis(draws.reshape(count, d, -1, features), 2, 1).reshape(-1, d * features).T
    parts = []
    for chunk in _chunks(xi_new, count):
        f = (chunk.reshape(len(chunk), -1) @ columns).reshape(len(chunk), count, *outputs)
        parts.append((f.mean(axis=1), f.var(axis=1)))
    mean, variance = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    return Prediction(mean, variance)


class _KernelOfDraw:
    """Kernels K(U) between two sets of scaled attended inputs, for many U in turn.

    ``rows`` (n, d, N0) and ``columns`` (m, d, N0) are the two sets. Their tensor of products (d^2, n m) is stored if
    d < N0 (it is then smaller than the features mixed by U) and it fits into memory.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.rows, self.columns = rows, columns
        (n, d, features), m = rows.shape, len(columns)
        self.tensor = None
        if d < features and 8 * d * d * n * m <= _TENSOR_BYTES:
            product = rows.reshape(n * d, features) @ columns.reshape(m * d, features).T
            self.tensor = product.reshape(n, d, m, d).transpose(1, 3, 0, 2).reshape(d * d, n * m)

    def __call__(self, U: np.ndarray) -> np.ndarray:
        """Return K(U), (n C, m C), at U of shape (d, C, d, C); the output varies faster than the example."""
        d, C = U.shape[:2]
        n, m = len(self.rows), len(self.columns)
        if self.tensor is not None:
            blocks = U.transpose(1, 3, 0, 2).reshape(C * C, d * d) @ self.tensor
            return blocks.reshape(C, C, n, m).transpose(2, 0, 3, 1).reshape(n * C, m * C)
        mixed = np.tensordot(self.columns, U.reshape(d * C, d, C), axes=(1, 1))
        mixed = mixed.transpose(0, 3, 2, 1).reshape(m * C, d, C, -1)
        return np.einsum("npk,xpck->ncx", self.rows, mixed, optimize=True).reshape(n * C, m * C)


def _at(
    U: np.ndarray, own: _KernelOfDraw, cross: _KernelOfDraw, diagonal: np.ndarray, Y: np.ndarray, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance at one U (d, C, d, C), each (examples C,) with outputs fastest.

    ``own`` is the kernel of training examples, ``cross`` that of new with training ones; ``diagonal`` (examples, d, d)
    are products of a new example's paths; Y (P C,) are the labels.
    """
    K, k = own(U), cross(U)
    K[np.diag_indices_from(K)] += temperature
    factor = cho_factor(K, lower=True, overwrite_a=True, check_finite=False)
    explained = solve_triangular(factor[0], k.T, lower=True, check_finite=False)
    prior = np.einsum("pcqc,npq->nc", U, diagonal, optimize=True).reshape(-1)
    mean = k @ cho_solve(factor, Y, check_finite=False)
    return mean, prior - np.einsum("ij,ij->j", explained, explained)


def _chunks(xi: np.ndarray, numbers: int) -> Iterator[np.ndarray]:
    """Yield chunks of 64 to 512 examples, as many as fit into _TENSOR_BYTES at ``numbers`` floats per example."""
    step = int(np.clip(_TENSOR_BYTES // (8 * numbers), 64, _CHUNK))
    for first in range(0, len(xi), step):
        yield xi[first : first + step]
