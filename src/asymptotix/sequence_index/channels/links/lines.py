"""Discrete outputs of more than two indices: the prior cut to the region where the link has the observed value.

One whitened coordinate is integrated exactly along random lines, between the points where the link jumps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...models.link import LinkModel
from ..tools.line_intervals import member_intervals, places_on_line
from ..tools.random_lists import kronecker_normals
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from .link_channel import ROUNDING, LinkChannel


class LineChannel(LinkChannel):
    """More than two indices: random lines along every whitened coordinate, exact along each line."""

    draws = 768
    stochastic = True
    _line, _most = places_on_line(65), 4
    description = "random lines, exact along each: more than two indices and discrete outputs, without noise"

    def __init__(self, model: LinkModel) -> None:
        super().__init__(model, 0)

    def footprint(self, draws: int) -> int:
        return draws * (65 + 5 * 48)

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> SampleMoments:
        n = self.size
        each = max(1, draws // (2 * n))
        root = jnp.linalg.cholesky(prior)
        tolerance = ROUNDING * (1 + jnp.abs(y))
        half = kronecker_normals(key, each * n, n - 1).reshape(each, n, n - 1)
        others = jnp.concatenate([half, -half])  # what is odd in the other coordinates drops out

        def on_line(axis: int, x: Any) -> tuple[Any, Any, Any]:
            point = jnp.insert(x, axis, 0.0)

            def member(s: Any) -> Any:
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
