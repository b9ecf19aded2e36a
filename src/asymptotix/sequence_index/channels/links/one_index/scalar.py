"""One index, one token, no noise: the link is cut once into monotone and constant pieces."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics.compiled import compiled
from .....numerics.precision import double_precision
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
    """The posterior is a sum over the roots of g(z) = y, of weight N(z; omega, V)/|g'(z)|.

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
        """Return exact averages for a link of one output that has few pieces and never overflows; else None."""
        if self._pieces.value.shape[1] > 1 or reached(self._pieces.ends).sum() > MOST:
            return None
        both = compiled(jax.vmap(lambda z: jax.jvp(self.link, (z[None],), (jnp.ones(1),))))

        @double_precision()
        def evaluate(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, slope = both(z)
            return np.asarray(value)[:, 0], np.asarray(slope)[:, 0]

        found = ScalarAverager(self._pieces, evaluate)
        return found if found.whole else None

    def footprint(self, draws: int) -> int:
        return 64 * len(self._pieces.ends)

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> SampleMoments:
        flat = self._pieces.constant
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

    def log_output_volume(self, observation: Any) -> np.ndarray:
        """Return log |dy / d observation|; zero on pieces where the link is constant: outputs there are discrete."""
        volumes = super().log_output_volume(observation)
        if not self._pieces.flat.any():
            return volumes
        y = np.asarray(observation, float)[:, None]
        apart = abs(y - self._pieces.value[self._pieces.flat]) / (1 + abs(y))
        return np.where((apart <= np.asarray(rounding_of(y))).all(-1).any(-1), 0.0, volumes)

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


def _refuse_lost_roots(model: ObservedLink, found: Pieces) -> None:
    """Raise NotImplementedError where rounding gives several pieces one output, so that their roots are unknown."""
    from scipy.special import ndtr

    ends, value = found.ends[found.saturated], found.value[found.saturated, 0]
    shared = (abs(value[:, None] - value) <= ROUNDING * (1 + abs(value))).sum(1) > 1
    if (ndtr(ends[shared, 1]) - ndtr(ends[shared, 0])).sum() > _LOST:
        raise NotImplementedError(
            f"link {model.link!r} without noise rounds to one value on several intervals where it is not constant,"
            " so that its roots cannot be found; write it without the saturating function, or choose noise > 0, for"
            " example noise=0.01"
        )


def _mean_rank(found: Pieces) -> float:
    """Probability, under N(0, 1), of the pieces on which the link is not constant."""
    from scipy.special import ndtr

    mass = ndtr(found.ends[:, 1]) - ndtr(found.ends[:, 0])
    rank = float(mass[~found.flat].sum())
    return round(rank, 12)
