"""The channel of links of two indices and one output without noise: quadrature along the level curve."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.precision import double_precision
from ....numerics.programs.compiled import compiled
from ... import streams
from ...models.observed_link import ObservedLink, flat_link
from ..tools.line_roots import line_roots
from ..tools.root_finding import projected
from ..tools.sample_moments import SampleMoments, weighted_moments
from ..tools.small_matrices import cholesky, half_log_det, solve_positive
from .link_channel import LinkChannel
from .link_kind import LinkKind

#: Number of nodes of a chart, each a line of one index, and of points of a line between which roots are searched.
_NODES, _LINE_NODES = 384, 128
#: The same numbers for points that serve all priors; a posterior mean then has an error of 1e-3 posterior deviations.
_SUPPORT_NODES, _SUPPORT_LINE_NODES = 160, 80
_WINDOW = 8.5
#: Smallest standard deviation of a prior that such points serve; an index counts as known at a larger deviation.
_FINEST = 0.9e-3
_LARGEST_NUMBER_OF_CENTRES = 8


class CurveChannel(LinkChannel):
    """Channel in which Z_out is the integral of N(z; omega, V)/|grad g| over the arc length of {g = y}.

    Two charts cover the curve. Chart S solves g = y for the index z_S along lines of fixed z_F, the other index. A
    smooth partition of unity p_S weighs the roots of both charts:

        Z_out = sum_S int dz_F sum_roots N(z) p_S/|g_S|,      p_S = 1/(1 + r_S^2),   r_S r_F = 1,
        r_S = |g_F|^3 (g_SS^2 + g_F^2)^{1/2} / (|g_S|^3 (g_FF^2 + g_S^2)^{1/2}),

    where g_S = dg/dz_S and so on are in units of the standard deviations. p_S vanishes where a line of S is tangent to
    the curve and the integrand is not smooth; about d_S = g_S^2/(g_SS g_F) is the distance to that place, and r_S is
    about d_F/d_S. The nodes of z_F are dense around the critical points of g, because the curve bends sharply there:
    the closer y is to the critical value, the denser they are.
    """

    finest, fields = _FINEST, 8
    slow_posterior = True

    def __init__(self, model: ObservedLink, kind: LinkKind) -> None:
        super().__init__(model, 1)
        self._affine = kind.affine
        way = "in closed form" if all(kind.affine) else "by bracketing and Newton's method"
        self.description = (
            f"quadrature along the level curve, roots along lines {way}: two indices and one output, without noise"
        )

    @cached_property
    def _centres(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        with jax.ensure_compile_time_eval():  # called while a program is traced
            return critical_points(self.model)

    @property
    def cost(self) -> int:
        return 2

    def footprint(self, draws: int) -> int:
        return 2 * _NODES * (40 if all(self._affine) else 600)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        root = cholesky(prior)
        deviation = jnp.sqrt(jnp.diag(prior))
        far = root @ projected(lambda x: self.link(omega + root @ x), y, jnp.zeros(2), 12)[0]
        correlation = prior / jnp.outer(deviation, deviation)
        nodes = [self._nodes(y, omega[i], deviation[i], jnp.abs(far[i]) / deviation[i], i, _NODES) for i in (0, 1)]

        log_weights, t = self._on_curve(y, omega, deviation, nodes, _NODES // _LINE_NODES)
        log_weights -= 0.5 * (t * solve_positive(correlation, t.T).T).sum(1)
        # Z_out is a density of y: this is N(z) d^2 z in units of the deviations.
        normal = -half_log_det(correlation) - np.log(2 * np.pi)
        return weighted_moments(log_weights + normal, t * deviation)

    def support(self, y: jax.Array, z: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        nodes = [self._nodes(y, 0.0, 1.0, 0.0, i, _SUPPORT_NODES, z[i]) for i in (0, 1)]
        every = _SUPPORT_NODES // _SUPPORT_LINE_NODES
        log_weights, points = self._on_curve(y, 0.0, 1.0, nodes, every)
        return points[None], log_weights[None]

    def _on_curve(
        self,
        y: jax.Array,
        omega: jax.Array | float,
        deviation: jax.Array | float,
        nodes: list[tuple[jax.Array, jax.Array]],
        every: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Return log-weights (m,) and places t (m, 2) of points omega + deviation t of the curve, from both charts.

        ``nodes`` holds the results of :meth:`_nodes` for both indices. Along an index, roots are searched between every
        ``every``-th of its nodes.
        """
        branch, parts = self.model.branch, []

        def residual(t: jax.Array) -> jax.Array:
            return self.link(omega + deviation * t)[0] - y[0]

        def branch_of(t: jax.Array) -> jax.Array:
            assert branch is not None
            return branch(omega + deviation * t)

        for solved in (0, 1):
            (t, log_steps), (line, _) = nodes[1 - solved], nodes[solved]
            chart = jax.vmap(partial(self._on_line, residual, branch and branch_of, solved, line[::every]))
            log_weights, roots = chart(t, log_steps)
            parts.append((log_weights.ravel(), roots.reshape(-1, 2)))
        log_weights, t = (jnp.concatenate(column) for column in zip(*parts, strict=True))
        return log_weights, t

    def _on_line(
        self,
        residual: Callable[[jax.Array], jax.Array],
        branch: Callable[[jax.Array], jax.Array] | None,
        solved: int,
        line: jax.Array,
        t: jax.Array,
        log_step: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Return log-weights (r,) and places (r, 2) of the roots along a line of index ``solved``; the other is t.

        Roots are searched between the points ``line``; ``log_step`` is the log of the quadrature weight of t.
        """
        free = 1 - solved

        def point(s: jax.Array) -> jax.Array:
            return jnp.zeros(2).at[free].set(t).at[solved].set(s)

        along = None if branch is None else lambda s: branch(point(s))
        s, found = line_roots(lambda s: residual(point(s)), line, self._affine[solved], along)
        x = jax.vmap(point)(s)
        slope, bend = jax.vmap(jax.grad(residual))(x), jax.vmap(jax.hessian(residual))(x)
        bend = jnp.sqrt(jnp.diagonal(bend, axis1=1, axis2=2) ** 2 + slope[:, ::-1] ** 2)
        steep = jnp.abs(slope)
        log_ratio = 3 * jnp.log(steep[:, free]) + jnp.log(bend[:, solved])
        log_ratio -= 3 * jnp.log(steep[:, solved]) + jnp.log(bend[:, free])
        log_ratio = jnp.where(jnp.isnan(log_ratio), jnp.inf, log_ratio)
        log_weight = log_step - jax.nn.softplus(2 * log_ratio) - jnp.log(steep[:, solved])
        return jnp.where(found & (steep[:, solved] > 0), log_weight, -jnp.inf), x

    def _nodes(
        self,
        y: jax.Array,
        omega: jax.Array | float,
        deviation: jax.Array | float,
        far: jax.Array | float,
        free: int,
        count: int,
        truth: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return nodes t (count,) of z_F = omega + deviation t, with F = ``free``, and the logs of their steps.

        The nodes are equal steps of 6 t/T + sum_c asinh((t - t_c)/delta_c), inverted by bisection and Newton's method,
        with critical points t_c, and |t| < T = 8.5 + ``far``; ``far`` is the change of t from omega to the nearest
        point of the curve. ``truth`` and -``truth``, if given, are further t_c, with delta_c = ``_FINEST``.
        """
        place, value, bend = self._centres[free]
        centre = (place - omega) / deviation
        close = 0.5 * jnp.sqrt(2 * jnp.abs(y[0] - value) / bend) / deviation
        close = jnp.clip(close, 1e-8, 1e3)
        if truth is not None:
            # The mirror image of the true index keeps the symmetry of even links.
            both = jnp.stack([truth, -truth])
            centre, close = jnp.concatenate([centre, both]), jnp.append(close, jnp.full(2, _FINEST))
        T = _WINDOW + far  # far: from omega to the nearest point of the curve

        def cumulative(t: jax.Array) -> jax.Array:
            return 6 * t / T + jnp.arcsinh((t[:, None] - centre) / close).sum(1)

        def density(t: jax.Array) -> jax.Array:
            return 6 / T + (1 / jnp.sqrt((t[:, None] - centre) ** 2 + close**2)).sum(1)

        ends = cumulative(jnp.array([-1.0, 1.0]) * T)
        step = (ends[1] - ends[0]) / count
        wanted = ends[0] + (jnp.arange(count) + 0.5) * step

        def halve(_: object, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            middle = 0.5 * (bracket[0] + bracket[1])
            high = cumulative(middle) > wanted
            return jnp.where(high, bracket[0], middle), jnp.where(high, middle, bracket[1])

        a, b = jax.lax.fori_loop(0, 26, halve, (jnp.full(count, -T), jnp.full(count, T)))
        t = 0.5 * (a + b)
        for _ in range(2):
            t = jnp.clip(t - (cumulative(t) - wanted) / density(t), a, b)
        return t, jnp.log(step / density(t))


@double_precision()
def critical_points(model: ObservedLink) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return for each index, at c critical points of the link: the index, the link, the largest |second derivative|.

    Newton's method starts from many points. If critical points fill a line, the index along it gets none.
    """
    link = partial(flat_link, model)
    gradient, hessian = jax.grad(lambda z: link(z)[0]), jax.hessian(lambda z: link(z)[0])
    z = jnp.asarray(2 * np.random.default_rng(streams.CRITICAL_POINT_STARTS).standard_normal((256, 2)))

    def newton(z: jax.Array, _: object) -> tuple[jax.Array, None]:
        H, g = jax.vmap(hessian)(z), jax.vmap(gradient)(z)
        step = -jnp.einsum("nij,nj->ni", jax.vmap(_pseudo_inverse)(H), g)
        return z + step * jnp.minimum(1, 1 / (jnp.linalg.norm(step, axis=1, keepdims=True) + 1e-12)), None

    z = compiled(lambda z: jax.lax.scan(newton, z, None, length=60)[0])(z)
    there = compiled(jax.vmap(lambda z: (gradient(z), hessian(z), link(z)[0])))(z)
    slope, H, value, points = (np.asarray(x) for x in (*there, z))
    good = (np.abs(slope).max(1) < 1e-9) & (np.abs(points).max(1) < 10) & np.isfinite(H).all((1, 2))
    bend = np.maximum(np.abs(H[good]).max((1, 2)), 1e-3)
    return [_distinct(points[good, axis], value[good], bend) for axis in (0, 1)]


def _distinct(place: np.ndarray, value: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, first = np.unique(np.round(np.stack([place, value], 1), 5) + 0.0, axis=0, return_index=True)
    if len(first) > _LARGEST_NUMBER_OF_CENTRES:
        first = first[:0]
    return place[first], value[first], bend[first]


def _pseudo_inverse(H: jax.Array) -> jax.Array:
    """Return the pseudo-inverse of a symmetric matrix H (2, 2), from its eigenvalues ``mean`` +- ``radius``."""
    mean = 0.5 * jnp.trace(H)
    apart = H - mean * jnp.eye(2)
    radius = jnp.hypot(apart[0, 0], apart[0, 1])
    values = mean + radius * np.array([1.0, -1.0])
    inverses = jnp.where(jnp.abs(values) > 1e-10 * jnp.abs(values).max(), 1 / values, 0.0)
    axes = apart / jnp.where(radius > 0, radius, 1.0)
    return 0.5 * (inverses.sum() * jnp.eye(2) + (inverses[0] - inverses[1]) * axes)
