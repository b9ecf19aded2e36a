"""One index, one token, no noise: the link is cut once into monotone and constant pieces."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.precision import double_precision
from ...models.link import LinkModel
from ..tools.root_finding import monotone_root
from ..tools.sample_moments import SampleMoments, weighted_moments
from ..tools.truncated_normal import truncated_normal
from .link_channel import ROUNDING, LinkChannel, flat_link
from .scalar_averager import MOST, ScalarAverager, reached

_REACH = 40.0
_LARGEST_NUMBER_OF_PIECES = 512


class Pieces(NamedTuple):
    """Intervals that cover the line (up to |z| = 40, or to where the link overflows), K of them.

    Attributes
    ----------
    ends : array (K, 2)
    constant : array (K,) of bool
        On the others every output is strictly monotone or constant.
    component : array (K,) of int
        An output that is strictly monotone there.
    value : array (K, k)
        The link in the middle of the piece.
    """

    ends: np.ndarray
    constant: np.ndarray
    component: np.ndarray
    value: np.ndarray


class ScalarChannel(LinkChannel):
    """The posterior is a sum over the roots of g(z) = y, of weight N(z; omega, V)/|g'(z)|.

    Where y is a value that g takes on an interval, the interval has positive probability and the roots have none: the
    posterior is then a Gaussian cut to such intervals, and Z_out a probability instead of a density.
    """

    def __init__(self, model: LinkModel) -> None:
        self._pieces = pieces(model)
        rank = _mean_rank(self._pieces)
        super().__init__(model, rank)
        K, flat = len(self._pieces.ends), int(self._pieces.constant.sum())
        self.description = (
            f"exact summation over the {K} pieces ({flat} of them constant) of a link of one variable, without noise"
        )

    def exact_averager(self) -> ScalarAverager | None:
        """Where the link has one output, few pieces, is nowhere constant and nowhere overflows; kept."""
        return self._averager

    @functools.cached_property
    def _averager(self) -> ScalarAverager | None:
        if self._pieces.constant.any() or self._pieces.value.shape[1] > 1 or len(reached(self._pieces.ends)) > MOST:
            return None
        both = jax.jit(jax.vmap(lambda z: jax.jvp(self.link, (z[None],), (jnp.ones(1),))))

        @double_precision()
        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = both(z)
            return np.asarray(value)[:, 0], np.asarray(slope)[:, 0]

        found = ScalarAverager(self._pieces.ends, evaluate)
        return found if found.whole else None

    def footprint(self, draws: int) -> int:
        return 64 * len(self._pieces.ends)

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> SampleMoments:
        flat = self._pieces.constant
        scale = jnp.sqrt(prior[0, 0])
        tolerance = ROUNDING * (1 + jnp.abs(y))
        logs, points, extra = [], [], []
        hit = jnp.zeros((), bool)
        if flat.any():
            ends = (self._pieces.ends[flat] - omega[0]) / scale
            ends = ends.at[0, 0].set(-jnp.inf) if flat[0] else ends
            ends = ends.at[-1, 1].set(jnp.inf) if flat[-1] else ends
            matches = (jnp.abs(self._pieces.value[flat] - y) <= tolerance).all(-1)
            log_mass, mean, variance = truncated_normal(ends[:, 0], ends[:, 1])
            hit = matches.any()
            logs, points, extra = [jnp.where(matches, log_mass, -jnp.inf)], [mean], [variance]
        if not flat.all():
            z, log_slope, inside, close = jax.vmap(partial(self._root, y))(
                self._pieces.ends[~flat], self._pieces.component[~flat]
            )
            # Rounding may carry y past an extremum; only then is what is close to a root taken for one.
            found = jnp.where(inside.any(), inside, close)
            t = (z - omega[0]) / scale
            log_density = -0.5 * t**2 - 0.5 * np.log(2 * np.pi) - jnp.log(scale) - log_slope
            logs.append(jnp.where(found & ~hit, log_density, -jnp.inf))
            points.append(t)
            extra.append(jnp.zeros_like(t))
        join = jnp.concatenate
        t, variance = join(points)[:, None], join(extra)[:, None]
        return weighted_moments(join(logs), t * scale, variance * scale**2)

    def _root(self, y: Any, ends: Any, component: Any) -> tuple[Any, Any, Any, Any]:
        """The root of the piece, log |g'| there, whether there is one, and whether there nearly is one."""

        def residual(z: Any) -> tuple[Any, Any]:
            value, slope = jax.jvp(self.link, (z[None],), (jnp.ones(1),))
            return value[component] - y[component], slope[component]

        bottom, top = residual(ends[0])[0], residual(ends[1])[0]
        sign = jnp.sign(top - bottom)
        margin = ROUNDING * (1 + jnp.abs(y[component]))
        close = (jnp.minimum(bottom, top) <= margin) & (jnp.maximum(bottom, top) >= -margin)
        z = monotone_root(lambda z: tuple(sign * x for x in residual(z)), ends[0], ends[1])
        value, slope = jax.jvp(self.link, (z[None],), (jnp.ones(1),))
        agrees = (jnp.abs(value - y) <= 2 * ROUNDING * (1 + jnp.abs(y))).all()
        log_slope = 0.5 * jnp.log(jnp.maximum((slope**2).sum(), 1e-18))
        return z, log_slope, agrees & (bottom * top <= 0), agrees & close


def _mean_rank(found: Pieces) -> float:
    """Probability, under N(0, 1), of the pieces on which the link is not constant."""
    from scipy.special import ndtr

    mass = ndtr(found.ends[:, 1]) - ndtr(found.ends[:, 0])
    rank = float(mass[~found.constant].sum())
    return round(rank, 12)


@double_precision()
def pieces(model: LinkModel) -> Pieces:
    """Cut the link of one variable at its extrema, kinks and jumps, found on a fine grid and by bisection."""
    link = partial(flat_link, model)
    slope = jax.vmap(jax.jacfwd(lambda z: link(z[None])))
    both = jax.jit(lambda z: (jax.vmap(lambda t: link(t[None]))(z), slope(z)))

    def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, derivative = both(z)
        return np.asarray(value), np.asarray(derivative)

    # Off the round numbers, where links have their kinks and jumps.
    grid = np.concatenate([-np.geomspace(_REACH, 12, 240), np.arange(-12, 12, 0.005), np.geomspace(12, _REACH, 240)])
    grid = np.unique(grid) + 0.00123456
    value, derivative = evaluate(grid)
    overflows = np.flatnonzero(~np.isfinite(np.concatenate([value, derivative], 1)).all(1))
    middle = len(grid) // 2
    left = int(overflows[overflows < middle].max(initial=-1)) + 1
    right = int(overflows[overflows >= middle].min(initial=len(grid)))
    grid, value, derivative = grid[left:right], value[left:right], derivative[left:right]
    turns = _turns(grid, derivative, evaluate)
    jumps = _jumps(grid, value, derivative, evaluate)
    cuts = np.unique(np.concatenate([grid[:1], turns, jumps, grid[-1:]]))
    cuts = cuts[np.append(True, np.diff(cuts) > 1e-12)]
    if len(cuts) - 1 > _LARGEST_NUMBER_OF_PIECES:
        raise NotImplementedError(
            f"link {model.link!r} has {len(cuts) - 1} monotone pieces, more than {_LARGEST_NUMBER_OF_PIECES}, too many "
            "to be summed without noise; choose noise > 0, for example noise=0.01"
        )
    return _classified(cuts, evaluate)


def _classified(cuts: np.ndarray, evaluate: Any) -> Pieces:
    ends = np.stack([cuts[:-1], cuts[1:]], 1)
    # A jump lies between two neighbouring floats: stay off it by more than its width.
    width = np.diff(ends, axis=1)
    ends = ends + np.array([1.0, -1.0]) * np.minimum(1e-14 * (1 + np.abs(ends)), 0.1 * width)
    value, derivative = evaluate(ends.mean(1))
    component = np.argmax(np.abs(derivative), axis=1)
    return Pieces(ends, (derivative == 0).all(1), component, value)


def _turns(grid: np.ndarray, derivative: np.ndarray, evaluate: Any) -> np.ndarray:
    """Where an output changes between rising, falling and constant."""
    kind = np.sign(derivative)
    cells = np.flatnonzero((kind[1:] != kind[:-1]).any(1))
    a, b, left = grid[cells], grid[cells + 1], kind[cells]
    for _ in range(60 if len(cells) else 0):
        middle = 0.5 * (a + b)
        same = (np.sign(evaluate(middle)[1]) == left).all(1)
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return b


def _jumps(grid: np.ndarray, value: np.ndarray, derivative: np.ndarray, evaluate: Any) -> np.ndarray:
    """Where an output jumps: the difference of its values is not what its derivative says, at any width."""
    expected = 0.5 * np.diff(grid)[:, None] * (derivative[1:] + derivative[:-1])
    excess = np.abs(np.diff(value, axis=0) - expected)
    cells = np.flatnonzero((excess > 1e-5 * (1 + np.abs(value[1:]))).any(1))
    if not len(cells):
        return np.zeros(0)
    a, b, low, high = grid[cells], grid[cells + 1], value[cells], value[cells + 1]
    for _ in range(60):
        middle = 0.5 * (a + b)
        at = evaluate(middle)[0]
        left = np.abs(at - low).max(1) > np.abs(high - at).max(1)
        a, b = np.where(left, a, middle), np.where(left, middle, b)
        low, high = np.where(left[:, None], low, at), np.where(left[:, None], at, high)
    return b[(np.abs(high - low) > 1e-9 * (1 + np.abs(low))).any(1)]
