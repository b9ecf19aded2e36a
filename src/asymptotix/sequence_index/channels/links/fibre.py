"""The channels of links of any rank: weighted draws on the fibre {g(z) = y}, or on {g(z) + sqrt(noise) e = y}.

In whitened coordinates z = omega + L xi the prior is N(0, I) in R^n and phi(xi) = g(z) has a differential J of rank r.
A chart draws n - r coordinates, xi_F, and solves phi(xi) = y for the r others, xi_S. Several charts c are used at once,
and the balance heuristic gives every root xi the weight w,

    1/w = sum_c m_c vol(J[:, S_c]) q_c(xi_{F_c}) / N_n(xi),      vol(B) = sqrt(det B^T B),

with m_c draws from the density q_c in chart c: the weights stay finite where one chart degenerates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from ...models.observed_link import ObservedLink
from ..tools.random_lists import kronecker_normals
from ..tools.root_finding import gauss_newton, projected, repeated
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from ..tools.small_matrices import cholesky, half_log_det, solve_positive
from .fibre_support import FibreSupport
from .link_channel import LinkChannel
from .link_kind import LinkKind

CHARTS = 4
#: Draws per list of the points that serve all priors (a support).
_SUPPORT_DRAWS = 256
#: Largest number of indices for which there are such points: every coordinate is a chart.
_LARGEST_SUPPORT = 8
_PILOTS = 16
_FARTHEST = 7.0
_LOG_2PI = float(np.log(2 * np.pi))


class Pilots(NamedTuple):
    """Points (p, n) of the fibre near prior draws, weights (p,), and mean (n,), covariance (n, n) of a Gaussian fit."""

    points: jax.Array
    weights: jax.Array
    mean: jax.Array
    covariance: jax.Array


class Charts(NamedTuple):
    """Charts: numbers of the r solved and d = n - r drawn coordinates, and a Gaussian for draws around the pilots.

    Shapes: (charts, r), (charts, d), mean (charts, d), covariance (charts, d, d).
    """

    solved: jax.Array
    drawn: jax.Array
    mean: jax.Array
    covariance: jax.Array


class FibreChannel(LinkChannel):
    """Channel by self-normalised importance sampling on the fibre.

    Half of the draws of free coordinates come from the prior, half from a Gaussian around points of the fibre near
    prior draws (pilots): at small V the posterior is there. ``draws`` counts the draws of all charts. The rms error of
    g_out falls like draws^-0.75.
    """

    draws = 256
    stochastic = True
    slow_posterior = True

    def __init__(self, model: ObservedLink, rank: int, affine: tuple[bool, ...] = ()) -> None:
        """``rank`` is that of dg/dz; ``affine``, for one output, marks the unknowns in which the link is affine."""
        super().__init__(model, rank)
        self._affine = affine or (False,) * self.size
        if rank == 1 and affine and self.size <= _LARGEST_SUPPORT:
            # With one solved coordinate all roots along a line are found. With several some are missed, less often
            # near the truth than elsewhere: points that are dense around it would pull every posterior there.
            self.finest, self.fields, self.more_fields = 5e-3, 4, 4
        self.dimension, self.solved = self.size, rank
        self.description = (
            f"weighted draws on the fibre of the output, {CHARTS} charts that each solve {rank} of {self.size} "
            "coordinates, without noise"
        )
        self.starts = 20 if rank == 1 else 8

    @property
    def cost(self) -> int:
        return super().cost if self.finest is None else 8

    def footprint(self, draws: int) -> int:
        return draws * self.starts * (self.starts + 6 * self.dimension * (self.dimension + 4))

    def whitened(self, omega: jax.Array, root: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """Return the link as a function of whitened x, z = omega + root x, with root root^T the prior covariance."""
        return lambda x: self.link(omega + root @ x)

    @cached_property
    def support_program(self) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        rows, amplitude = np.arange(self.size) // self.tokens, float(np.sqrt(self.model.noise))
        phi = self.whitened(jnp.zeros(self.size), jnp.eye(self.size))
        points_of = FibreSupport(phi, rows, self._affine, self.symmetry.exchangeable)

        def found(y: np.ndarray, z: np.ndarray, keys: np.ndarray, longer: int = 1) -> tuple[np.ndarray, np.ndarray]:
            noise = (y - self.model.values(z)) / amplitude if amplitude else np.zeros((len(y), 0))
            x, log_weights = points_of(y[:, 0], np.concatenate([z, noise], 1), keys, longer * _SUPPORT_DRAWS)
            noise = x[..., self.size :]
            return x[..., : self.size], log_weights - 0.5 * (noise**2 + _LOG_2PI).sum(-1)

        return found

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        root = cholesky(prior)
        phi = self.whitened(omega, root)
        found = fibre_moments(phi, y, key, (self.dimension, self.solved), draws, self.starts)
        n = self.size
        return coloured(found._replace(shift=found.shift[:n], covariance=found.covariance[:n, :n]), root)


class NoisyFibreChannel(FibreChannel):
    """Channel of links with noise: y = g(z) + sqrt(noise) e is a link without noise of n + k unknowns (z, e).

    Charts are chosen per sample. A chart that solves e draws z and weighs it by the likelihood. A chart that solves
    coordinates of z draws e, so that z is near the solutions of g(z) = y.
    """

    def __init__(self, model: ObservedLink, kind: LinkKind) -> None:
        # The observation is affine in its noise.
        super().__init__(model, kind.outputs, (*kind.affine, *[True] * kind.outputs))
        self.outputs, self.noises = 0.0, kind.outputs
        self.dimension = self.size + kind.outputs
        self.description = (
            f"weighted draws on the fibre of the output in the space of indices and noise, {CHARTS} charts that each"
            f" solve {self.solved} of {self.dimension} coordinates"
        )

    def whitened(self, omega: jax.Array, root: jax.Array) -> Callable[[jax.Array], jax.Array]:
        size, amplitude = self.size, float(np.sqrt(self.model.noise))
        return lambda x: self.link(omega + root @ x[:size]) + amplitude * x[size:]


def fibre_moments(
    phi: Callable[[jax.Array], jax.Array], y: jax.Array, key: jax.Array, shape: tuple[int, int], draws: int, starts: int
) -> SampleMoments:
    """Return the moments of xi ~ N(0, I_n) given phi(xi) = y; ``shape`` is (n, r), with r the rank of phi.

    ``draws`` counts the draws of all charts, ``starts`` the starting points of the root search per draw.
    """
    n, r = shape
    each = max(2, draws // CHARTS)
    keys = jax.random.split(key, 5)
    pilots = find_pilots(phi, y, keys[0], n)
    charts = choose_charts(phi, pilots, keys[1], r)
    free = _draw_free(charts, keys[2], each)
    x, found = _solve(phi, y, pilots, charts, free, keys[3], starts)
    x, found = x.reshape(-1, n), found.reshape(-1)
    J = jax.vmap(jax.jacfwd(phi))(x)
    log_weights = -jax.vmap(partial(_log_balance, charts))(J, x) - np.log(each)
    return weighted_moments(jnp.where(found & jnp.isfinite(log_weights), log_weights, -jnp.inf), x)


def find_pilots(phi: Callable[[jax.Array], jax.Array], y: jax.Array, key: jax.Array, n: int) -> Pilots:
    """Return prior draws in R^n, projected on {phi = y}, and a Gaussian fitted to them, widened for safe tails.

    Failed projections have weight zero. With fewer than two successes the draws stay unprojected.
    """
    start = jax.random.normal(key, (_PILOTS, n))
    points, residual = jax.vmap(lambda x: projected(phi, y, x, 10))(start)
    good = (residual < 1e-4 * (1 + (y**2).sum())) & (jnp.abs(points).max(1) < 6)
    square = (points**2).sum(1)
    # Weights are nearly flat: the pilots show where the fibre is, not the mass of its parts.
    beyond = square - jnp.min(jnp.where(good, square, jnp.inf))
    log_weights = jnp.where(good, -0.15 * jnp.minimum(beyond, 2.0 * n), -jnp.inf)
    enough = good.sum() >= 2
    weights = jnp.where(enough, jax.nn.softmax(jnp.where(enough, log_weights, 0.0)), 1 / _PILOTS)
    points = jnp.where(enough, points, start)
    mean = weights @ points
    centred = points - mean
    covariance = (weights[:, None] * centred).T @ centred
    wider = 1.5 * covariance + (0.03 + 0.15 * jnp.trace(covariance) / n) * jnp.eye(n)
    return Pilots(points, weights, mean, wider)


def choose_charts(phi: Callable[[jax.Array], jax.Array], pilots: Pilots, key: jax.Array, r: int) -> Charts:
    """Return one chart for each of CHARTS random pilots: it solves the r coordinates that move phi most there."""
    n = pilots.points.shape[1]
    chosen = jax.random.choice(key, _PILOTS, (CHARTS,), p=pilots.weights)
    solved = jax.vmap(lambda x: _pivots(jax.jacfwd(phi)(x), r))(pilots.points[chosen])
    taken = (solved[:, :, None] == np.arange(n)).any(1)
    drawn = jnp.argsort(taken, axis=1, stable=True)[:, : n - r]
    mean = jax.vmap(lambda F: pilots.mean[F])(drawn)
    covariance = jax.vmap(lambda F: pilots.covariance[F][:, F])(drawn)
    return Charts(solved, drawn, mean, covariance)


def _pivots(J: jax.Array, r: int) -> jax.Array:
    """Return the numbers of r columns of J (k, n) that span a large volume, chosen greedily, in increasing order."""
    free = jnp.ones(J.shape[1], bool)
    chosen = []
    for _ in range(r):
        j = jnp.argmax(jnp.where(free, (J**2).sum(0), -1.0))
        q = J[:, j] / jnp.sqrt(jnp.maximum((J[:, j] ** 2).sum(), 1e-300))
        J, free = J - q[:, None] * (q @ J), free.at[j].set(False)
        chosen.append(j)
    return jnp.sort(jnp.stack(chosen))


def _draw_free(charts: Charts, key: jax.Array, each: int) -> jax.Array:
    """Return draws (charts, each, n - r) of the drawn coordinates: half from the prior, half around the pilots."""
    d = charts.drawn.shape[1]
    half = each // 2
    first, second = jax.random.split(key)
    plain = kronecker_normals(first, CHARTS * (each - half), d).reshape(each - half, CHARTS, d).swapaxes(0, 1)
    around = kronecker_normals(second, CHARTS * half, d).reshape(half, CHARTS, d).swapaxes(0, 1)
    roots = jax.vmap(cholesky)(charts.covariance)
    around = charts.mean[:, None] + jnp.einsum("cij,cmj->cmi", roots, around)
    return jnp.concatenate([plain, around], 1)


def _solve(
    phi: Callable[[jax.Array], jax.Array],
    y: jax.Array,
    pilots: Pilots,
    charts: Charts,
    free: jax.Array,
    key: jax.Array,
    starts: int,
) -> tuple[jax.Array, jax.Array]:
    """Return the ends (charts, each, starts, n) of root searches for phi = y, and which of them are distinct roots.

    The drawn coordinates keep their values ``free`` (charts, each, n - r); the solved ones begin at ``starts`` points.
    """
    each, r = free.shape[1], charts.solved.shape[1]
    n = r + free.shape[2]
    initial = _starting_points(pilots, charts, key, each, starts)

    def at(S: jax.Array, F: jax.Array, drawn: jax.Array, starting: jax.Array) -> tuple[jax.Array, jax.Array]:
        base = jnp.zeros(n).at[F].set(drawn)

        def one(t: jax.Array) -> tuple[jax.Array, jax.Array]:
            t, found = gauss_newton(lambda t: phi(base.at[S].set(t)), y, t, 10, 3)
            return base.at[S].set(t), found

        x, ok = jax.vmap(one)(starting)
        t = x[:, S]
        ok &= jnp.abs(t).max(1) < _FARTHEST
        return x, ok & ~repeated(t, ok)

    return jax.vmap(jax.vmap(at, (None, None, 0, 0)))(charts.solved, charts.drawn, free, initial)


def _starting_points(pilots: Pilots, charts: Charts, key: jax.Array, each: int, starts: int) -> jax.Array:
    """Return starting points (charts, each, starts, r): a grid if r = 1; else normals, pilots, and mirrored pilots."""
    r = charts.solved.shape[1]
    first, second = jax.random.split(key)
    if r == 1:
        grid = jnp.linspace(-4.5, 4.5, starts)[:, None]
        return grid + 0.1 * jax.random.normal(first, (CHARTS, each, starts, 1))
    half = starts // 2
    plain = 1.3 * jax.random.normal(first, (CHARTS, each, starts - half, r))
    chosen = jax.random.choice(second, _PILOTS, (CHARTS, each, half), p=pilots.weights)
    signs = np.where(np.arange(half) % 2 == 0, 1.0, -1.0)[:, None]
    near = jax.vmap(lambda S, i: pilots.points[i][..., S])(charts.solved, chosen) * signs
    return jnp.concatenate([near, plain], 2)


def _log_balance(charts: Charts, J: jax.Array, x: jax.Array) -> jax.Array:
    """Return the log of sum_c vol(J[:, S_c]) q_c(x_{F_c}) / N_n(x) at one point x (n,) with differential J (k, n)."""
    d = charts.drawn.shape[1]

    def one(S: jax.Array, F: jax.Array, mean: jax.Array, covariance: jax.Array) -> jax.Array:
        B = J[:, S]
        drawn = x[F]
        plain = -0.5 * (drawn**2).sum()
        if d:
            away = drawn - mean
            around = -0.5 * away @ solve_positive(covariance, away) - half_log_det(covariance)
            plain = jnp.logaddexp(plain, around) - np.log(2.0)
        return half_log_det(B.T @ B) + plain - 0.5 * d * _LOG_2PI

    prior = -0.5 * (x**2).sum() - 0.5 * len(x) * _LOG_2PI
    return logsumexp(jax.vmap(one)(*charts)) - prior
