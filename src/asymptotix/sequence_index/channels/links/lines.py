"""The channel of discrete outputs of several indices: the posterior is the prior cut to where the link equals them.

One whitened coordinate is integrated exactly along random lines, between the points where the link jumps.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.precision import double_precision
from ... import streams
from ...models.observed_link import ObservedLink
from ..tools.line_intervals import member_intervals, places_on_line
from ..tools.random_lists import kronecker_normals
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from ..tools.small_matrices import cholesky
from .link_channel import ROUNDING, LinkChannel

#: Most jumps per line of links for which a coarse grid (65 points, else 193) suffices, and of accepted links.
_FEW_JUMPS, _MOST_JUMPS = 4, 24
#: Number of lines on which jumps are counted, and share of lines that may have more jumps.
_LINES, _RARE = 2**10, 0.01


class LineChannel(LinkChannel):
    """Channel that integrates exactly along ``draws`` random lines, parallel to the whitened coordinates in turn."""

    draws = 768
    stochastic = True
    description = "random lines, exact along each: several indices and discrete outputs, without noise"

    def __init__(self, model: ObservedLink) -> None:
        super().__init__(model, 0)
        most = jumps_along_lines(model)
        if most > _MOST_JUMPS:
            raise NotImplementedError(
                f"link {model.link!r} without noise: along a line it takes and leaves a value {most} times, more than"
                f" {_MOST_JUMPS}; choose noise > 0 (a variance), for example noise=0.01"
            )
        few = most <= _FEW_JUMPS
        self._most, self._line = (_FEW_JUMPS, places_on_line(65)) if few else (most, places_on_line(193))

    def footprint(self, draws: int) -> int:
        return draws * (len(self._line) + (1 + self._most) * 48)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        n = self.size
        each = max(1, draws // (2 * n))
        root = cholesky(prior)
        tolerance = ROUNDING * (1 + jnp.abs(y))
        half = kronecker_normals(key, each * n, n - 1).reshape(each, n, n - 1)
        others = jnp.concatenate([half, -half])  # odd functions of the other coordinates cancel

        def on_line(axis: int, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            point = jnp.insert(x, axis, 0.0)

            def member(s: jax.Array) -> jax.Array:
                return (jnp.abs(self.link(omega + root @ point.at[axis].set(s)) - y) <= tolerance).all()

            log_mass, mean, variance = member_intervals(member, self._line, self._most)
            points = jnp.broadcast_to(point, (len(mean), n)).at[:, axis].set(mean)
            return log_mass, points, jnp.zeros_like(points).at[:, axis].set(variance)

        parts = [jax.vmap(partial(on_line, axis))(others[:, axis]) for axis in range(n)]
        log_mass = jnp.stack([part[0] for part in parts])
        x, extra = (jnp.stack([part[i] for part in parts]).reshape(-1, n) for i in (1, 2))
        found = weighted_moments(log_mass.ravel() - np.log(2 * each * n), x, extra)
        lines = jnp.exp(jax.scipy.special.logsumexp(log_mass, axis=-1) - jnp.max(log_mass))
        return coloured(found._replace(effective_samples=lines.sum() ** 2 / (lines**2).sum()), root)


@double_precision()
def jumps_along_lines(model: ObservedLink) -> int:
    """Return the 99 % quantile, over random lines through random points, of the jumps to or from the point's output."""
    rng = np.random.default_rng(streams.LINK_LINES)
    n = model.indices * model.tokens
    points, directions = rng.standard_normal((_LINES, n)), rng.standard_normal((_LINES, n))
    directions[::2] = np.eye(n)[np.arange(_LINES // 2) % n]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    along = points[:, None] + np.linspace(-6.0, 6.0, 601)[:, None] * directions[:, None]
    values, there = model.values(along.reshape(-1, n)).reshape(_LINES, along.shape[1], -1), model.values(points)
    member = np.all(abs(values - there[:, None]) <= ROUNDING * (1 + abs(there[:, None])), axis=-1)
    return int(np.quantile(np.diff(member, axis=1).sum(1), 1 - _RARE, method="higher"))
