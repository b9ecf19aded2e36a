"""Posterior of the weights themselves, computed from the attended inputs without the tokens.

Start from E^(L+1) = a, shape (C, N_a). For partial paths (h_l, ..., h_L), the output fastest, define

    E^(l)_(h, rest, c) = E^(l+1)_(rest, c) V^{l,h} / sqrt(N_{l+1}),      U^(l) = E^(l) E^(l)^T / N_l.

Then every output is linear in the attended inputs, f_c(x) = sum_pi w^{pi c} . xi^pi(x), with the path weights

    w = E^(1) V0 / sqrt(d N_1 N0).

They cost d N_1 N0 operations, whatever the number of examples.

Tiberi et al., arXiv:2405.15926, eqs. (5), (6) and (8), with E^(1) the effective weights of all paths; eq. (13) for U.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.arrays import Array
from ..network.weights import Weights


class WeightData(NamedTuple):
    """Data of the posterior: attended inputs (P, d N0), labels (P, C), temperature, prior variances s_0..s_L, s_a."""

    xi: Array
    labels: Array
    temperature: float | jax.Array
    variances: Array


@dataclass(frozen=True)
class WeightPosterior:
    """Posterior p(V0, V, a | Y); its coordinates z are the weights divided by their prior standard deviations.

    Parameters
    ----------
    heads
        H_1..H_L.
    widths
        N_1..N_L, N_a: input widths of the layers and of the readout.
    features
        N0.
    outputs
        C.
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    features: int
    outputs: int = 1

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the projection V0, the values V^1..V^L and the readout a, in their order in z."""
        N = self.widths
        layers = tuple(zip(self.heads, N[1:], N[:-1], strict=True))
        return ((N[0], self.features), *layers, (self.outputs, N[-1]))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def weights(self, z: Array, variances: Array | Sequence[float]) -> Weights:
        """Return the weights of order one at z, `a` as (C, N_a); ``variances`` are the prior's, s_0, s_1..s_L, s_a."""
        parts, first = [], 0
        for shape, s in zip(self.shapes, variances, strict=True):
            last = first + math.prod(shape)
            parts.append(jnp.sqrt(s) * z[first:last].reshape(shape))
            first = last
        return Weights(parts[0], parts[1:-1], parts[-1])

    def effective_weights(self, weights: Weights) -> Array:
        """Return the effective weights E^(1) of all d paths, (d C, N_1); the C outputs vary fastest."""
        E = weights.a
        for V in list(weights.V)[::-1]:
            E = (E @ V / math.sqrt(E.shape[-1])).reshape(-1, V.shape[-1])
        return E

    def path_weights(self, weights: Weights, E: Array) -> Array:
        """Return path weights w, (d C, N0), with f_c = sum_pi w^{pi c} . xi^pi; E are the effective weights E^(1)."""
        return E @ weights.V0 / math.sqrt(math.prod(self.heads) * self.widths[0] * self.features)

    def log_density(self, z: Array, data: WeightData) -> Array:
        """Return ln p(z | Y) at z (size,), up to a constant."""
        weights = self.weights(z, data.variances)
        w = self.path_weights(weights, self.effective_weights(weights))
        w = w.reshape(-1, self.outputs, self.features).transpose(0, 2, 1).reshape(-1, self.outputs)
        residual = data.xi @ w - data.labels
        return -0.5 * (z @ z) - 0.5 * (residual**2).sum() / data.temperature

    def observe(self, z: Array, data: WeightData) -> dict[str, Array]:
        weights = self.weights(z, data.variances)
        E = self.effective_weights(weights)
        return {"order_parameter": E @ E.T / E.shape[-1], "path_weights": self.path_weights(weights, E)}


def weight_data(xi: np.ndarray, labels: np.ndarray, temperature: float, variances: tuple[float, ...]) -> WeightData:
    """Return the data from attended inputs xi (P, d, N0), labels (P,) or (P, C), prior variances s_0, s_1..s_L, s_a."""
    P = len(xi)
    return WeightData(xi.reshape(P, -1), labels.reshape(P, -1), np.float64(temperature), np.array(variances))
