"""The channel of discrete outputs of two indices: the posterior is the prior cut to where the link equals the output.

One index is integrated exactly along lines, between the points where the link jumps; the other by quadrature.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.precision import double_precision
from ...models.observed_link import ObservedLink
from ..tools.line_intervals import member_intervals, places_on_line
from ..tools.sample_moments import SampleMoments, weighted_moments
from .link_channel import ROUNDING, LinkChannel

#: Most places where the quadrature is split, and the largest |z| of such a place.
_LARGEST_NUMBER_OF_CUTS, _FARTHEST = 24, 6.5
#: Most intervals of a line on which a link has the same value. Links that exceed a limit get random lines.
_MOST_INTERVALS = 3
_U, _U_WEIGHTS = np.polynomial.legendre.leggauss(48)


class PlaneChannel(LinkChannel):
    """Channel of two indices: exact along lines of one index, Gauss-Legendre quadrature over the other.

    The quadrature is split where the sequence of values along the lines changes. Between these places the integrand is
    smooth, up to square roots at the ends, which the substitution u -> 3 u^2 - 2 u^3 removes.

    ``free`` (0 or 1) is the index of the quadrature, ``cuts`` (c,) the values of this index at which it is split.
    """

    _line, _most = places_on_line(193), 2 * _MOST_INTERVALS

    def __init__(self, model: ObservedLink, free: int, cuts: np.ndarray) -> None:
        super().__init__(model, 0)
        self._free, self._cuts = free, cuts
        self.description = (
            f"quadrature over lines, split at {len(self._cuts)} places: two indices and discrete outputs, without noise"
        )

    @classmethod
    def of(cls, model: ObservedLink) -> PlaneChannel | None:
        """Return the channel whose quadrature has fewer cuts; None if the values of the link change too often."""
        cuts = {axis: found for axis in (0, 1) if (found := pattern_changes(model, axis)) is not None}
        free = min(cuts, key=lambda axis: len(cuts[axis]), default=None)
        return None if free is None else cls(model, free, cuts[free])

    def footprint(self, draws: int) -> int:
        return 48 * (len(self._cuts) + 3) * (193 + 7 * 48)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        free, solved = self._free, 1 - self._free
        deviation = jnp.sqrt(prior[free, free])
        slope = prior[free, solved] / prior[free, free]
        width = jnp.sqrt(prior[solved, solved] - slope * prior[free, solved])
        edges = jnp.concatenate([jnp.array([-30.0, -7.5, 7.5, 30.0]), (self._cuts - omega[free]) / deviation])
        edges = jnp.sort(jnp.clip(edges, -30.0, 30.0))
        u = 0.5 * (_U + 1)
        t = (edges[:-1, None] + jnp.diff(edges)[:, None] * (u**2 * (3 - 2 * u))).ravel()
        weights = (jnp.diff(edges)[:, None] * (3 * u * (1 - u) * _U_WEIGHTS)).ravel()
        tolerance = ROUNDING * (1 + jnp.abs(y))

        def on_line(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def member(s: jax.Array) -> jax.Array:
                shift = jnp.zeros(2).at[free].set(deviation * t).at[solved].set(slope * deviation * t + width * s)
                return (jnp.abs(self.link(omega + shift) - y) <= tolerance).all()

            return member_intervals(member, self._line, self._most)

        log_mass, mean, variance = jax.vmap(on_line)(t)
        log_weights = log_mass + jnp.log(weights)[:, None] - 0.5 * t[:, None] ** 2 - 0.5 * np.log(2 * np.pi)
        along = jnp.broadcast_to(deviation * t[:, None], mean.shape)
        columns = [along, slope * along + width * mean]
        x = jnp.stack([columns[0] if axis == free else columns[1] for axis in (0, 1)], -1)
        extra = (width**2 * variance)[..., None] * (jnp.arange(2) == solved)
        return weighted_moments(log_weights.ravel(), x.reshape(-1, 2), extra.reshape(-1, 2))


@double_precision()
def pattern_changes(model: ObservedLink, axis: int) -> np.ndarray | None:
    """Return values (c,) of z_axis at which the sequence of outputs along the other index changes; None: too many."""
    other = np.linspace(-9, 9, 601) + 0.00217

    def sequences(c: np.ndarray) -> list[np.ndarray]:
        places = np.empty((len(c), len(other), 2))
        places[..., axis], places[..., 1 - axis] = c[:, None], other
        values = model.values(places.reshape(-1, 2)).reshape(len(c), len(other), -1)
        return [_without_repetitions(row) for row in np.round(values, 9) + 0.0]

    def patterns(c: np.ndarray) -> list[bytes]:
        return [row.tobytes() for row in sequences(c)]

    grid = np.linspace(-_FARTHEST, _FARTHEST, 361) + 0.00123
    if any(np.unique(row, axis=0, return_counts=True)[1].max() > _MOST_INTERVALS for row in sequences(grid)):
        return None
    found = patterns(grid)
    cells = [i for i in range(len(grid) - 1) if found[i] != found[i + 1]]
    if not cells or len(cells) > _LARGEST_NUMBER_OF_CUTS:
        return None if cells else np.zeros(0)
    a, b, left = grid[cells], grid[np.array(cells) + 1], [found[i] for i in cells]
    for _ in range(50):
        middle = 0.5 * (a + b)
        same = np.array([now == before for now, before in zip(patterns(middle), left, strict=True)])
        a, b = np.where(same, middle, a), np.where(same, b, middle)
    return 0.5 * (a + b)


def _without_repetitions(row: np.ndarray) -> np.ndarray:
    """Return the rows of an array (m, k) without those that equal the row before them."""
    return row[np.append(True, (row[1:] != row[:-1]).any(1))]
