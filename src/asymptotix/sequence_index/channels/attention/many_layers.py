"""Rank-one tied attention of any depth and any number of tokens: weighted draws on the fibre of the output.

The output fixes the last pre-activation u up to its sign,

    s u = A_{L-1} ... A_1 z_L,     A_l = c I + R(v_l v_l^T),     v_l = A_{l-1} ... A_1 z_l,

so that the integral over z_L is a factor 1/|det A_{L-1} ... A_1| (Troiani et al., arXiv:2502.00901, eqs. (154) to
(159), where the printed 1/V_ll' must be replaced by entries of V^{-1}).

Points of the fibre come from three sources, each a closed formula per draw:

* "prior": z_1 .. z_{L-1} from the prior, z_L solved (linear);
* "inverse": all but z_{L-1} from the prior, v = v_{L-1} solved from R(v v^T) t = s u - c t, t = A_{L-2} ... A_1 z_L: by
  inverting logits for softmax with two tokens, as r / sqrt(r.t) for linear activation (no formula for other cases);
* "modes": z_1 .. z_{L-1} from Gaussians around modes of the posterior (mode_mixture), z_L solved.

The search for modes starts from a few pilots, which are separate draws of the first two sources. Every point of any
source has the weight of the balance heuristic. With n_a, n_b, n_c draws of the sources, prior densities p and the
density q of the Gaussians,

    1/w = |det A_{L-2} .. A_1| ( (n_a + n_c q/p) |det A_{L-1}| / p(z_L)  +  n_b |det d(R t)/dv| / p(z_{L-1}) ),

so that the weights stay moderate where one source degenerates or one prior is narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics.arrays import Array
from ....numerics.precision import double_precision
from ....numerics.quadrature import Estimate, sobol_uniforms
from ... import streams
from ...models import rank_one
from ..mapped import MappedChannel
from ..tools.mode_mixture import Mixture, log_sum, modes
from ..tools.random_lists import normals_from, random_rotations, starts, uniforms_from
from ..tools.sample_moments import SampleMoments
from .deep_at_zero import deep_curvature_at_zero
from .linear_at_zero import linear_curvature_at_zero
from .mixing_layer import Matrix, Vector, applied, determinant, dot, has_inverse, inverted, log_slope, mixing, solved

#: Number of normals that all samples share; a sample takes its own block and rotates every layer by its own rotation.
_LIST = 2**16
#: Draws of each source from which pilots are chosen, number of pilots, and Gauss-Newton steps of a pilot.
_PILOT_DRAWS, _PILOTS, _STEPS = 32, 8, 3
#: Least skip strength at which softmax layers are far enough from singular for single precision (errors of 1e-5).
_WELL_CONDITIONED = 0.1
_LOG_2PI = float(np.log(2 * np.pi))


class Randomness(NamedTuple):
    """Randomness of one sample, for (pilots, draws) x (two lists): blocks (2, 2), rotations (2, 2, 3 (L-1), M, M).

    ``blocks`` are numbers in (0, 1) that choose a block of the shared normals; ``gumbel`` is noise that chooses pilots.
    """

    blocks: jax.Array
    turns: jax.Array
    gumbel: jax.Array


class Prior(NamedTuple):
    """Prior means omega_l, one list of M numbers per layer, and prior variances V_l (L,)."""

    centre: list[Vector]
    variances: jax.Array


class Points(NamedTuple):
    """Points of the fibre: x = (z - omega)/sqrt(V) of every layer, the two terms of log 1/w, whether a point exists."""

    x: list[Vector]
    prior_term: jax.Array
    inverse_term: jax.Array
    exist: jax.Array


class DeepChannel(MappedChannel):
    """Posterior of all layers, in the token basis, from weighted draws.

    ``draws`` counts the draws of all sources. log Z_out is a density of y for two tokens, of u (up to sign) for more.

    Parameters
    ----------
    layers : int
        Depth L >= 2.
    tokens : int
        M >= 2.
    skip : float
        c; zero only with softmax, whose rows exp(v_i v_j) are linearly independent for almost every v.
    activation : "softmax" or "linear"
    """

    diagonal = True
    stochastic = True
    lists = 2

    def __init__(self, layers: int, tokens: int, skip: float, activation: str) -> None:
        if skip == 0 and activation == "linear":
            raise NotImplementedError(
                f"no channel for linear activation without skip connection: R(u u^T) has rank one, so that {layers}"
                " layers lose all but one direction of the tokens, got skip=0; choose skip > 0"
            )
        super().__init__(layers, tokens, tokens)
        self.layers, self.skip, self.activation = layers, skip, activation
        # With fewer draws so many samples need more lists that no time is saved.
        self.draws = 1024 if jax.default_backend() == "cpu" else 4096
        self.invertible = has_inverse(tokens, activation)
        self.shares = (1, 1, 2) if self.invertible else (2, 0, 2)
        self.precision = "float32" if activation == "softmax" and skip >= _WELL_CONDITIONED else "float64"
        self.description = "weighted draws on the fibre of the output, from the prior and around modes, without noise"

    @property
    def cost(self) -> int:
        return 4 if jax.default_backend() == "cpu" else 1

    def _parameters(self) -> tuple[int, int, float, str]:
        return self.layers, self.tokens, self.skip, self.activation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeepChannel) and self._parameters() == other._parameters()

    def __hash__(self) -> int:
        return hash(self._parameters())

    def __str__(self) -> str:
        return f"DeepChannel{self._parameters()}"

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        return rank_one.canonical_sign(rank_one.last_preactivation(Z, self.skip, self.activation))

    def model_output(self, Z: Array) -> Any:
        return rank_one.output(Z, self.skip, self.activation)

    def log_output_volume(self, observation: Array) -> Array:
        if self.tokens != 2:
            return super().log_output_volume(observation)
        return rank_one.log_output_volume(observation @ rank_one.ROTATION.T, self.activation)

    def curvature_at_zero(self) -> Estimate | None:
        if self.activation == "linear" and self.layers == 2:
            return linear_curvature_at_zero(self.tokens, self.skip)
        if self.activation == "softmax":  # lists from the prior miss the tails of three or more linear layers
            return deep_curvature_at_zero(*self._parameters())
        return None

    def footprint(self, draws: int) -> int:
        return draws * (3 * self.size + 4 * _PILOTS)

    def keys(self, numbers: np.ndarray, seed: int) -> np.ndarray:
        return starts(numbers, (streams.DEEP_CHANNEL_ROTATIONS << 16) + seed)

    def _randomness(self, start: jax.Array) -> Randomness:
        """Return the randomness of one sample, from its start in the sequence of uniform numbers."""
        M, vectors, gumbels = self.tokens, 3 * (self.layers - 1), 6 * _PILOT_DRAWS
        uniforms = uniforms_from(start, 4 + 4 * vectors * M * M + gumbels)
        blocks, turns, rest = jnp.split(uniforms, [4, len(uniforms) - gumbels])
        normals = normals_from(turns).reshape(2, 2, vectors, M, M)
        return Randomness(blocks.reshape(2, 2), random_rotations(normals), -jnp.log(-jnp.log(rest)))

    def program(self, draws: int, seed: int) -> Callable[..., SampleMoments]:
        normals = _normals(max(_LIST, draws), 3 * (self.size - self.tokens), seed, self.precision)
        return partial(_program, self, draws, normals)

    def moments(
        self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int, *, normals: Any = None
    ) -> SampleMoments:
        L, M = self.layers, self.tokens
        given = y, omega, prior, self._randomness(key)
        y, omega, prior, own = jax.tree.map(lambda x: x.astype(normals.dtype), given)
        gaussian = Prior([list(row) for row in omega.reshape(L, M)], jnp.diagonal(prior).reshape(L, M)[:, 0])
        counts = np.array(self.shares) * 2 * max(draws // 8, 1)  # even: half for each list
        lists = self._drawn(normals, own, 1, int(counts.max()))
        # Half of the draws come from each list; the two lists are stored one after the other.
        a, b, c = (
            [x.reshape(2, -1)[:, : n // 2].reshape(-1) for x in entries]
            for entries, n in zip(lists, counts, strict=True)
        )
        points, mixture = self._last_solved(y, gaussian, a), None
        if counts[1]:
            points += self._last_but_one_solved(y, gaussian, b)
        if counts[2]:
            mixture = self._modes(y, gaussian, self._drawn(normals, own, 0, _PILOT_DRAWS), own.gumbel)
            points += self._last_solved(y, gaussian, mixture.draw(c))
        log_weights = []
        for point in points:
            terms = [math.log(counts[0]) + point.prior_term]
            if counts[1]:
                terms.append(math.log(counts[1]) + point.inverse_term)
            if mixture is not None:
                terms.append(math.log(counts[2]) + mixture.log_ratio(_flat(point.x[:-1])) + point.prior_term)
            log_weights.append(jnp.where(point.exist, -log_sum(terms), -jnp.inf))
        return _moments_of(points, log_weights, gaussian.variances)

    def _drawn(self, normals: jax.Array, own: Randomness, stage: int, each: int) -> list[Vector]:
        """Return, for each of three sources, (L - 1) M arrays of ``each`` standard normals; two independent halves.

        A half is a block of the shared ``normals`` (3 (L - 1) M, count), in which every layer is turned by its own
        rotation. ``stage`` is 0 for pilots and 1 for draws.
        """
        M, vectors, size = self.tokens, 3 * (self.layers - 1), self.size - self.tokens

        def half(block: jax.Array, turns: jax.Array) -> Vector:
            start = each // 2 * jnp.floor(block * (normals.shape[1] // (each // 2))).astype(int)
            rows = jax.lax.dynamic_slice_in_dim(normals, start, each // 2, axis=1)
            return [
                sum((turns[k, m, j] * rows[k * M + j] for j in range(M)), 0.0) for k in range(vectors) for m in range(M)
            ]

        both = [half(own.blocks[stage, h], own.turns[stage, h]) for h in range(2)]
        turned = [jnp.concatenate(pair) for pair in zip(*both, strict=True)]
        return [turned[k * size : (k + 1) * size] for k in range(3)]

    def _modes(self, u: jax.Array, prior: Prior, lists: list[Vector], gumbel: jax.Array) -> Mixture:
        """Return Gaussians around the modes that are reached from pilots.

        Pilots are chosen among points from the normals ``lists``, with probabilities as the roots of their weights.
        """
        points = self._last_solved(u, prior, lists[0])
        if self.invertible:
            points += self._last_but_one_solved(u, prior, lists[1])
        terms = [[p.prior_term, p.inverse_term] if self.invertible else [p.prior_term] for p in points]
        pairs = zip(points, terms, strict=True)
        log_weights = jnp.concatenate([jnp.where(p.exist, -log_sum(t), -jnp.inf) for p, t in pairs])
        # The largest scores with Gumbel noise are draws without replacement. The root keeps pilots far from the best.
        scores = 0.5 * log_weights + gumbel[: len(log_weights)]
        chosen = jax.lax.top_k(scores, _PILOTS)[1]
        x = jnp.stack([jnp.concatenate(entry) for entry in zip(*(_flat(p.x[:-1]) for p in points), strict=True)], 1)

        def last(x: jax.Array) -> jax.Array:
            *_, matrices = self._drawn_layers(prior, list(x), self.layers - 1)
            return jnp.stack(_back_through(matrices, list(u)))

        centre, scale = jnp.stack(prior.centre[-1]), jnp.sqrt(prior.variances[-1])
        signs = jnp.where(jax.vmap(last)(x[chosen]) @ centre < 0, -1.0, 1.0).astype(x.dtype)
        steps = _STEPS if self.invertible else 3 * _STEPS
        return modes(lambda x, sign: (sign * last(x) - centre) / scale, x[chosen], signs, steps)

    def _drawn_layers(self, prior: Prior, x: Vector, count: int) -> tuple[list[Vector], list[Vector], list[Matrix]]:
        """Return x, v_l and A_l of the first ``count`` layers, from x = (z - omega)/sqrt(V), a list of all entries."""
        rows: list[Vector] = []
        v: list[Vector] = []
        matrices: list[Matrix] = []
        for layer in range(count):
            rows.append(x[layer * self.tokens : (layer + 1) * self.tokens])
            v.append(_through(matrices, _coloured(prior, layer, rows[-1])))
            matrices.append(mixing(v[-1], self.skip, self.activation))
        return rows, v, matrices

    def _last_solved(self, u: jax.Array, prior: Prior, x: Vector) -> list[Points]:
        """Return points of the fibre of u from draws ``x`` of all layers but L, with z_L solved; both signs of u."""
        rows, v, matrices = self._drawn_layers(prior, x, self.layers - 1)
        t = solved(matrices[-1], list(u))
        z = _back_through(matrices[:-1], t)
        found = []
        for sign in (1.0, -1.0):
            last = _whitened(prior, -1, [sign * entry for entry in z])
            found.append(self._weighed(prior, [*rows, last], v[-1], t, matrices, True))
        return found

    def _last_but_one_solved(self, u: jax.Array, prior: Prior, x: Vector) -> list[Points]:
        """Return points of the fibre of u from draws ``x`` of all layers but L-1, with v_{L-1} solved ("inverse")."""
        rows, _, early = self._drawn_layers(prior, x, self.layers - 2)
        last = x[-self.tokens :]
        t = _through(early, _coloured(prior, -1, last))
        found = []
        for sign in self._signs(u, t):
            v, exist = inverted(t, [sign * y - self.skip * w for y, w in zip(u, t, strict=True)], self.activation)
            z = _back_through(early, v)
            matrices = [*early, mixing(v, self.skip, self.activation)]
            for side in (1.0, -1.0):
                middle = _whitened(prior, -2, [side * entry for entry in z])
                found.append(self._weighed(prior, [*rows, middle, last], v, t, matrices, exist))
        return found

    def _signs(self, u: jax.Array, t: Vector) -> list[float] | list[jax.Array]:
        """Return signs s for which R(v v^T) t = s u - c t may have a root v; softmax keeps the sign of t_1 - t_2."""
        if self.activation == "linear":
            return [1.0, -1.0]
        return [jnp.where((u[0] - u[1]) * (t[0] - t[1]) < 0, -1.0, 1.0)]

    def _weighed(
        self, prior: Prior, x: list[Vector], v: Vector, t: Vector, matrices: list[Matrix], exist: jax.Array | bool
    ) -> Points:
        """Return points x with log |A_{L-1} .. A_1|/p(z_L) and log |A_{L-2} .. A_1| |d(R t)/dv|/p(z_{L-1}).

        Here |.| are determinants, v is v_{L-1} and t = A_{L-2} .. A_1 z_L up to its sign.
        """
        early = sum((jnp.log(determinant(A)) for A in matrices[:-1]), 0.0)
        middle, last = (_energy(prior, layer, x[layer]) for layer in (-2, -1))
        prior_term = early + jnp.log(determinant(matrices[-1])) + last
        slope = log_slope(v, t, self.activation) if self.invertible else -jnp.inf
        inverse_term = early + slope + middle
        sane = jnp.isfinite(prior_term) & ~jnp.isnan(inverse_term)
        return Points(x, prior_term, inverse_term, exist & sane)


def _coloured(prior: Prior, layer: int, x: Vector) -> Vector:
    return [w + jnp.sqrt(prior.variances[layer]) * entry for w, entry in zip(prior.centre[layer], x, strict=True)]


def _whitened(prior: Prior, layer: int, z: Vector) -> Vector:
    return [(entry - w) / jnp.sqrt(prior.variances[layer]) for w, entry in zip(prior.centre[layer], z, strict=True)]


def _energy(prior: Prior, layer: int, x: Vector) -> jax.Array:
    """Return -log of the prior density of a layer's indices z, from x = (z - omega)/sqrt(V)."""
    return 0.5 * dot(x, x) + 0.5 * len(x) * (jnp.log(prior.variances[layer]) + _LOG_2PI)


def _through(matrices: list[Matrix], x: Vector) -> Vector:
    for A in matrices:
        x = applied(A, x)
    return x


def _back_through(matrices: list[Matrix], x: Vector) -> Vector:
    for A in reversed(matrices):
        x = solved(A, x)
    return x


def _flat(rows: list[Vector]) -> Vector:
    return [entry for row in rows for entry in row]


def _moments_of(points: list[Points], log_weights: list[jax.Array], variances: jax.Array) -> SampleMoments:
    """Return the moments of the weighted points, with a leading axis (2,) for the two lists of draws."""

    def joined(parts: Iterable[jax.Array]) -> jax.Array:
        return jnp.concatenate([part.reshape(2, -1) for part in parts], 1)

    log_w = joined(log_weights)
    x = jnp.stack([joined(entry) for entry in zip(*(_flat(p.x) for p in points), strict=True)], 1)
    top = jnp.max(log_w, axis=1, keepdims=True)
    weights = jnp.exp(log_w - jnp.where(jnp.isfinite(top), top, 0.0))
    total = weights.sum(1)
    x = jnp.where(weights[:, None] > 0, x, 0.0)
    weighted = x * (weights / total[:, None])[:, None]
    mean = weighted.sum(2)
    # Moments about omega: second moments and squared mean are of the size of V, so that few digits cancel.
    covariance = jnp.einsum("hid,hjd->hij", weighted, x) - mean[:, :, None] * mean[:, None, :]
    evidence = jnp.where(total > 0, top[:, 0] + jnp.log(2 * total), jnp.nan)
    scale = jnp.repeat(jnp.sqrt(variances), mean.shape[1] // len(variances))
    effective = total**2 / (weights**2).sum(1)
    found = SampleMoments(evidence, scale * mean, scale[:, None] * covariance * scale, effective)
    return SampleMoments(*(x.astype(jnp.float64) for x in found))


@partial(jax.jit, static_argnums=(0, 1))
def _program(
    channel: DeepChannel,
    draws: int,
    normals: jax.Array,
    y: jax.Array,
    omega: jax.Array,
    prior: jax.Array,
    keys: jax.Array,
) -> SampleMoments:
    return jax.vmap(lambda *one: channel.moments(*one, draws=draws, normals=normals))(y, omega, prior, keys)


@lru_cache(maxsize=16)
@double_precision()
def _normals(count: int, dim: int, seed: int, dtype: str) -> jax.Array:
    """Return standard normals (dim, count) from a scrambled Sobol sequence, as an array on the device."""
    normals = ndtri(sobol_uniforms(count, dim, (streams.DEEP_CHANNEL_NORMALS, seed))).T
    return jnp.asarray(np.ascontiguousarray(normals), dtype)
