"""The channel of two rank-one layers of two tokens; its integral has two implementations.

Troiani et al., arXiv:2502.00901, eq. (160), corrected: the matrix that acts on z2 is c I plus the row-stochastic
attention matrix, and the printed 1/V_ll' must be replaced by an entry of V^{-1}.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Self

import jax
import numpy as np
from scipy.special import lambertw, ndtri

from ....numerics.arrays import Array
from ....numerics.precision import double_precision
from ....numerics.quadrature import Estimate
from ....numerics.threads import available_cores
from ...models import rank_one
from ..protocol import DEFAULT_ACCURACY, Accuracy, Channel, Posterior, ScoreSquares
from .activation_kinds import LINEAR, SOFTMAX
from .linear_at_zero import linear_curvature_at_zero
from .two_layers_at_zero import softmax_curvature_at_zero

#: Accuracy of rough posteriors, for averages that are corrected; a sample takes half the time.
_ROUGH = Accuracy(fineness=3.0, cut=7.0, rough=True)
#: Number of cores from which a CPU is as fast as an accelerator for short computations.
_MANY_CORES = 8


class TwoLayerChannel(Channel):
    """Channel of two rank-one layers and two tokens, in the rotated token basis.

    ``backend`` is "numba" (adaptive cubature on the CPU), "jax" (fixed-shape grid, CPU or GPU) or "auto": numba
    unless JAX has an accelerator and there are few cores. Arrays on an accelerator stay there with any backend.
    """

    indices = tokens = outputs = 2
    diagonal = True
    curvature_is_control = True
    folds_symmetries = True

    def __init__(self, skip: float, activation: str, backend: str = "auto", single: bool = False) -> None:
        self.skip, self._activation, self._single = skip, activation, single
        self._kind = LINEAR if activation == "linear" else SOFTMAX
        self.backend = cubature_backend(backend)
        self.concurrent = self.backend == "numba"
        self.rough_accuracy = _ROUGH if self.concurrent else None

    def in_single_precision(self) -> Self:
        """Return the channel that computes in float32 on the JAX path: one compiled program then serves a whole run."""
        single = copy.copy(self)
        single._single = True
        return single

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        return rank_one.canonical_sign(rank_one.rotated_preactivation(Z, self.skip, self._activation))

    def model_output(self, Z: Array) -> Any:
        u = rank_one.rotated_preactivation(Z, self.skip, self._activation)
        return rank_one.rotated_attention(u, self._activation)

    def log_output_volume(self, observation: Array) -> Array:
        return rank_one.log_output_volume(observation, self._activation)

    def posterior(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        n = omega.shape[0]
        # The fixed grid divides by the skip strength.
        there = isinstance(omega, jax.Array) and self.skip > 0 and jax.default_backend() != "cpu"
        if self.backend == "numba" and not there:
            from .two_layer_batches import posterior_moments

            observation, omega, V = (np.asarray(x, float) for x in (observation, omega, V))
            moments = posterior_moments(self._kind, self.skip, observation, omega.reshape(n, 4), V, accuracy)
        else:
            from . import fixed_grid

            # Float64 in, float64 out: theory runs in double precision, message passing need not.
            double = np.dtype(omega.dtype) == np.float64 and not self._single
            dtype = np.float64 if double else np.float32
            with double_precision() if double else contextlib.nullcontext():
                observation, omega, V = (_cast(x, dtype) for x in (observation, omega, V))
                moments = fixed_grid.posterior_moments(self._kind, self.skip, observation, omega.reshape(n, 4), V)
        log_evidence, shift, covariance = moments
        return Posterior(log_evidence, shift.reshape(n, 2, 2), covariance.reshape(n, 2, 2, 2, 2))

    def score_squares(
        self,
        observation: np.ndarray,
        Z: np.ndarray,
        noise: np.ndarray,
        V: np.ndarray,
        shares: np.ndarray,
        accuracy: Accuracy,
    ) -> ScoreSquares | None:
        if self.backend != "numba":
            return None
        from . import two_layer_batches

        v = np.diag(V)
        mixing = np.concatenate([1 - v, np.sqrt(((1 - v) * v).clip(0.0))])
        fields = Z.reshape(-1, 4), noise.reshape(-1, 4), mixing
        found = two_layer_batches.score_squares(self._kind, self.skip, observation, fields, V, shares, accuracy)
        return ScoreSquares(found[0], found[1][:2], found[1][2:])

    def curvature_at_zero(self) -> Estimate:
        if self._activation == "linear":
            return linear_curvature_at_zero(2, self.skip)
        return softmax_curvature_at_zero(self.skip)

    def draw_indices(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Z (n, 2, 2), z1 in one quadrant and z2 with positive z2-, and importance weights (n,).

        The model is invariant under z1 -> -z1, z2 -> -z2 and the exchange of tokens (both minus parts change
        sign), so one eighth of the space is enough, and Sobol points fill it eight times as densely. The radius of
        z1 is drawn with density (1 + s)/2 exp(-s), s = r^2/2, because |z1|^4 dominates the averages.
        """
        s = -lambertw(-2 * np.exp(-2) * (1 - uniforms[:, 0]), -1).real - 2
        angle = 0.5 * np.pi * uniforms[:, 1]
        radius = np.sqrt(2 * s)
        Z = np.empty((len(uniforms), 2, 2))
        Z[:, 0, 0], Z[:, 0, 1] = radius * np.cos(angle), radius * np.sin(angle)
        Z[:, 1, 0], Z[:, 1, 1] = ndtri(0.5 + 0.5 * uniforms[:, 2]), ndtri(uniforms[:, 3])
        return Z, 2 / (1 + s)

    def draw_nodes(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Z (n, 2, 2), noise of omega (n, 2, 2) and weights (n,), from uniforms (n, 8) in (0, 1).

        The first uniforms are used for the numbers with the largest share of the variance: z2-, |z1|, angle of z1.
        The noise of omega_1 is drawn in the frame of z1, because it acts mostly through omega_1 . z1. This order
        and this frame reduce the error of E|g_1|^2 by a factor of 1.5 to 2.
        """
        Z, weights = self.draw_indices(uniforms[:, [1, 2, 0, 7]])
        along, across, minus, plus = ndtri(uniforms[:, [3, 6, 4, 5]]).T
        cos, sin = (Z[:, 0] / np.linalg.norm(Z[:, 0], axis=1, keepdims=True)).T
        first = np.stack([cos * along - sin * across, sin * along + cos * across], 1)
        return Z, np.stack([first, np.stack([minus, plus], 1)], 1), weights


def _cast(x: Array, dtype: type[np.floating]) -> Array:
    """Cast an array on the host (from the theory) or on the device (from message passing), without moving it."""
    return x.astype(dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype)


def cubature_backend(backend: str) -> str:
    """Return the backend, with "auto" replaced by the fastest one."""
    return fastest_backend() if backend == "auto" else backend


def fastest_backend() -> str:
    """Return "numba" where JAX would run on a CPU or there are many cores, else "jax".

    Compiling the grid for an accelerator takes six seconds; many cores finish most curves in that time.
    """
    return "jax" if jax.default_backend() != "cpu" and available_cores() < _MANY_CORES else "numba"
