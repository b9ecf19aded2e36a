"""The channel of links of one index without noise: the link is cut once into monotone and constant pieces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.arrays import Array
from .....numerics.precision import double_precision
from .....numerics.programs.compiled import compiled, in_blocks
from ....models.observed_link import ObservedLink
from ...tools.root_finding import monotone_root
from ...tools.sample_moments import SampleMoments, weighted_moments
from ...tools.truncated_normal import truncated_normal
from ..link_channel import ROUNDING, LinkChannel, rounding_of
from .pieces import Pieces, pieces
from .scalar_averager import MOST, ScalarAverager, reached

#: Largest total probability of pieces whose roots are lost; larger, and averages would have an error of this order.
_LOST = 1e-9


class ScalarChannel(LinkChannel):
    """Channel that sums over the roots of g(z) = y with weights N(z; omega, V)/|g'(z)|.

    Where y is a value that g takes on an interval, the interval has positive probability and the roots have none: the
    posterior is then a Gaussian cut to such intervals, and Z_out a probability instead of a density.
    """

    def __init__(self, model: ObservedLink) -> None:
        self._pieces = pieces(model)
        _refuse_lost_roots(model, self._pieces)
        super().__init__(model, _mean_rank(self._pieces))
        K, flat = len(self._pieces.ends), int(self._pieces.flat.sum())
        self.description = (
            f"exact summation over the {K} pieces ({flat} of them constant) of a link of one variable, without noise"
        )

    def exact(self) -> ScalarAverager | None:
        """Return the averager; None if the link has several outputs or many pieces, overflows or is too rough."""
        if self._pieces.value.shape[1] > 1 or reached(self._pieces.ends).sum() > MOST:
            return None
        both = compiled(jax.vmap(lambda z: jax.jvp(self.link, (z[None],), (jnp.ones(1),))))

        @double_precision()
        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = in_blocks(both, z)
            return value[:, 0], slope[:, 0]

        found = ScalarAverager(self._pieces, evaluate)
        return found if found.whole else None

    def footprint(self, draws: int) -> int:
        return 64 * len(self._pieces.ends)

    def moments(self, y: jax.Array, omega: Any, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        self._refuse_lost_observations()
        flat = self._pieces.flat
        scale = jnp.sqrt(prior[0, 0])
        tolerance = rounding_of(y)
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
            # Rounding may move y past an extremum; only then does a point close to a root count as a root.
            found = jnp.where(inside.any(), inside, close)
            t = (z - omega[0]) / scale
            log_density = -0.5 * t**2 - 0.5 * np.log(2 * np.pi) - jnp.log(scale) - log_slope
            logs.append(jnp.where(found & ~hit, log_density, -jnp.inf))
            points.append(t)
            extra.append(jnp.zeros_like(t))
        join = jnp.concatenate
        t, variance = join(points)[:, None], join(extra)[:, None]
        return weighted_moments(join(logs), t * scale, variance * scale**2)

    @property
    def _hidden(self) -> float:
        """Probability of the indices whose outputs are constant by rounding only."""
        return _mass(self._pieces.ends[self._pieces.saturated])

    @property
    def volume_error(self) -> float:
        # The density of an output is divided by the slope, which is unknown where it rounds to zero.
        return float(np.inf) if self._hidden > _LOST else super().volume_error

    def _refuse_lost_observations(self) -> None:
        """Raise NotImplementedError if rounding makes the outputs of more than _LOST of the samples constant."""
        hidden = self._hidden
        if hidden > _LOST:
            raise NotImplementedError(
                f"link {self.model.link!r} without noise is constant by rounding for {hidden:.1%} of its samples, whose"
                " index cannot be found from the output; write the link without the saturating function, or choose"
                " noise > 0, for example noise=0.01"
            )

    @double_precision()
    def log_output_volume(self, observation: Array) -> np.ndarray:
        """Return log |dy / d observation| (n,); zero where the link is constant and outputs are discrete."""
        if self.observations_on_surface:
            volumes = self.log_volume_at(*in_blocks(self._one_root, np.asarray(observation, float)))
        else:
            volumes = super().log_output_volume(observation)
        if not self._pieces.flat.any():
            return volumes
        y = np.asarray(observation, float)[:, None]
        apart = abs(y - self._pieces.value[self._pieces.flat]) / (1 + abs(y))
        return np.where((apart <= np.asarray(rounding_of(y))).all(-1).any(-1), 0.0, volumes)

    @functools.cached_property
    def _one_root(self) -> Callable[..., tuple[jax.Array]]:
        """Program from observations (n, m) to one root (n, 1) of each; all roots have the same tangent dg/dz."""
        moving = ~self._pieces.flat

        def one(y: jax.Array) -> tuple[jax.Array]:
            z, _, inside, close = jax.vmap(partial(self._root, y))(
                self._pieces.ends[moving], self._pieces.component[moving]
            )
            return (z[jnp.argmax(2 * inside + close)][None],)

        return compiled(jax.vmap(one))

    def _root(self, y: jax.Array, ends: Array, component: Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return the root of g = y on the piece from ends[0] to ends[1], log |g'| there, and whether it exists.

        The fourth result is whether it exists up to rounding. Output number ``component`` is monotone on the piece.
        """

        def residual(z: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def _refuse_lost_roots(model: ObservedLink, found: Pieces) -> None:
    """Raise NotImplementedError if rounding gives different z one output, on several pieces or around an extremum."""
    ends, value = found.ends[found.saturated], found.value[found.saturated, 0]
    shared = (abs(value[:, None] - value) <= ROUNDING * (1 + abs(value))).sum(1) > 1
    if _mass(ends[shared | _around_extrema(found)[found.saturated]]) > _LOST:
        raise NotImplementedError(
            f"link {model.link!r} without noise rounds to one value where it is not constant, for several indices of"
            " one output, so that its roots cannot be found; write it without the saturating function, or choose"
            " noise > 0, for example noise=0.01"
        )


def _around_extrema(found: Pieces) -> np.ndarray:
    """Return which pieces (K,) lie between one on which the link rises and one on which it falls."""
    K = len(found.ends)
    around = np.zeros(K, bool)
    for k in range(1, K - 1):
        if not (found.constant[k - 1] or found.constant[k + 1]):
            around[k] = (found.direction[k - 1] * found.direction[k + 1] < 0).any()
    return around


def _mass(ends: np.ndarray) -> float:
    """Return the probability of intervals (K, 2) under N(0, 1)."""
    from scipy.special import ndtr

    return float((ndtr(ends[:, 1]) - ndtr(ends[:, 0])).sum())


def _mean_rank(found: Pieces) -> float:
    """Return the probability, under N(0, 1), of the pieces on which the link is not constant."""
    return round(_mass(found.ends[~found.flat]), 12)
