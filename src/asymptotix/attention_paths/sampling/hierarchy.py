"""The exact prior of the order parameters at finite widths: a chain of Wishart matrices, as a map from white noise.

With input widths N_1..N_L of the layers and N_a of the readout, variances s_1..s_L and s_a, and C outputs,

    U^(L+1)           ~ Wishart_C(N_a, (s_a / N_a) I_C),
    U^(l) | U^(l+1)   ~ Wishart(N_l, (s_l / N_l) I_{H_l} (x) U^(l+1)),      l = L..1,

over partial paths times outputs, (h_l, ..., h_L, output) with the output fastest. No limit is taken: given all later
weights, the rows of a layer's product are Gaussian. The recursion carries a factor, U^(l) = F^(l) F^(l)^T,

    F^(l) = sqrt(s_l / N_l) (I_{H_l} (x) F^(l+1)) A^(l),      A A^T ~ Wishart(N_l, I),

so singular matrices need no special treatment: where N_l is below the number m of rows of A, F has fewer columns than
rows, and the A of all earlier layers have fewer rows. If N_l >= m, A is lower triangular with A_ii^2 ~ chi^2_{N - i}
and normal entries below (Bartlett); otherwise A is an m x N_l matrix of normal entries.

At large N this prior is exp(-N S_0 / 2) with the entropy of Tiberi et al., arXiv:2405.15926, eqs. (32) and (33); the
exact form is ours.

Equation ap-wishart of docs/theory/attention_paths.md.
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
import scipy.special

from ...numerics.arrays import Array


class Level(NamedTuple):
    """Shape of the noise factor A of one layer: heads H_l, rows m, width N_l; A has min(m, N_l) columns."""

    heads: int
    rows: int
    width: int

    @property
    def triangular(self) -> bool:
        return self.width >= self.rows

    @property
    def columns(self) -> int:
        return min(self.rows, self.width)

    @property
    def size(self) -> int:
        """Number of free coordinates of A."""
        return self.rows * (self.rows + 1) // 2 if self.triangular else self.rows * self.width


class LevelNumbers(NamedTuple):
    """Numbers of one layer l: sqrt(s_l / N_l), degrees of freedom k of A's diagonal, constants of its log density.

    The last two are arrays (m,), or empty if A is not triangular.
    """

    scale: float | jax.Array
    degrees: Array
    constants: Array


@dataclass(frozen=True)
class Hierarchy:
    """Prior of the order parameters U^(1..L+1), in coordinates z of about unit variance each.

    Parameters
    ----------
    heads
        H_1..H_L.
    widths
        N_1..N_L, N_a: input widths of the layers and of the readout.
    outputs
        C.

    Notes
    -----
    The diagonal of a triangular noise factor A has the coordinates z_i with ln A_ii = (ln k)/2 + z_i / sqrt(2 k) and
    k = N - i. They are nearly standard normal for large k, so that one step size suits all coordinates at all widths.
    """

    heads: tuple[int, ...]
    widths: tuple[int, ...]
    outputs: int = 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Shapes of the noise factors A, from the readout to the first layer."""
        found, columns = [], self.outputs
        for H, N in zip((1, *self.heads[::-1]), self.widths[::-1], strict=True):
            found.append(Level(H, H * columns, N))
            columns = found[-1].columns
        return tuple(found)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(level.size for level in self.levels)

    @property
    def shape(self) -> Hierarchy:
        """The hierarchy of smallest widths whose factors A have the same shapes; it determines the compiled program."""
        return Hierarchy(self.heads, tuple(level.columns for level in self.levels[::-1]), self.outputs)

    def numbers(self, variances: Sequence[float]) -> tuple[LevelNumbers, ...]:
        """Return the numbers of every layer, in the order of `levels`; ``variances`` are s_1..s_L, s_a."""
        found = []
        for level, s in zip(self.levels, tuple(variances)[::-1], strict=True):
            k = level.width - np.arange(level.rows if level.triangular else 0, dtype=float)
            # Constants of the density of ln A for A^2 ~ chi^2_k, times d ln A / dz.
            constants = (1 - 0.5 * k) * math.log(2) - scipy.special.gammaln(0.5 * k) - 0.5 * np.log(2 * k)
            found.append(LevelNumbers(np.sqrt(s / level.width), k, constants))
        return tuple(found)

    def factors(self, z: jax.Array, numbers: Sequence[LevelNumbers]) -> tuple[list[jax.Array], jax.Array | float]:
        """Return the factors F^(1), ..., F^(L+1) of U^(l) = F^(l) F^(l)^T, and the log prior density of z (size,).

        ``numbers`` may come from any hierarchy of the same `shape`.
        """
        log_density, first = 0.0, 0
        F, found = jnp.eye(self.outputs), []
        for level, own in zip(self.levels, numbers, strict=True):
            A, log_part = _noise_factor(z[first : first + level.size], level, own)
            first += level.size
            F = own.scale * _times_blocks(F, A, level.heads)
            log_density += log_part
            found.append(F)
        return found[::-1], log_density


def _noise_factor(z: jax.Array, level: Level, numbers: LevelNumbers) -> tuple[jax.Array, jax.Array]:
    """Return A with A A^T ~ Wishart(N, I_m) from its coordinates z (level.size,), and their log density."""
    if not level.triangular:
        return z.reshape(level.rows, level.width), _log_normal(z)
    k = numbers.degrees
    white = _lower_triangle(z, level.rows)
    scaled = jnp.diag(white)
    log_diagonal = 0.5 * jnp.log(k) + scaled / jnp.sqrt(2 * k)
    diagonal = jnp.exp(log_diagonal)
    # For the diagonal's z, the chi density replaces the normal density.
    log_chi = k * log_diagonal - 0.5 * diagonal**2 + numbers.constants
    normal = _log_normal(z) + 0.5 * (scaled @ scaled) + 0.5 * level.rows * math.log(2 * math.pi)
    return jnp.where(np.eye(level.rows, dtype=bool), diagonal, white), log_chi.sum() + normal


def _lower_triangle(z: jax.Array, rows: int) -> jax.Array:
    """Return a lower-triangular matrix (m, m), m = ``rows``, that has each of the m (m + 1)/2 numbers z once.

    Concatenation and a mask avoid index assignment, whose scatter XLA turns into a slow loop on CPUs.
    """
    return jnp.tril(jnp.concatenate([z[rows:], z[::-1]]).reshape(rows, rows))


def _log_normal(z: jax.Array) -> jax.Array:
    return -0.5 * (z @ z) - 0.5 * z.size * math.log(2 * math.pi)


def _times_blocks(F: jax.Array, A: jax.Array, heads: int) -> jax.Array:
    """Return (I_H (x) F) A: each of the ``heads`` = H blocks of rows of A, multiplied by F from the left."""
    blocks = A.reshape(heads, F.shape[1], A.shape[1])
    return jnp.matmul(F, blocks, precision=jax.lax.Precision.HIGHEST).reshape(-1, A.shape[1])
