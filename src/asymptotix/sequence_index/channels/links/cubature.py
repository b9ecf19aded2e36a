"""The channel of links with Gaussian noise and one or two indices: adaptive cubature."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...models.observed_link import ObservedLink
from ..protocol import LEAST_EFFECTIVE_SAMPLES
from ..tools.root_finding import projected
from ..tools.sample_moments import SampleMoments, coloured, weighted_moments
from ..tools.small_matrices import cholesky
from .link_channel import LinkChannel
from .link_kind import LinkKind
from .one_index.noisy_averager import NoisyAverager, noisy_averager

_WINDOW = 8.5


class Cubes(NamedTuple):
    """Cubes of R^n: centres (m, n), half-widths (m,), and log priorities (m,), the highest of which are split next."""

    centre: jax.Array
    half: jax.Array
    urgency: jax.Array


class CubatureChannel(LinkChannel):
    """Adaptive Gauss-Legendre cubature with a fixed number of cells, so that all samples share one program.

    In whitened coordinates the priority of a cube is the product of its prior mass, of the largest likelihood that the
    values of the link at its corners allow, and of the variation of the log-likelihood in it. ``draws`` is the number
    of cubes split per level. A sample's effective number of draws is one over the share of its posterior in
    cubes that are too coarse after the last level; a batch whose median share is above 1/30 is refused.
    """

    slow_posterior = True

    def __init__(self, model: ObservedLink, kind: LinkKind) -> None:
        super().__init__(model, 0.0)
        self.noises = kind.outputs
        self.draws = 24 if self.size == 1 else 224
        self.description = f"adaptive cubature over the {self.size} whitened indices with a Gaussian likelihood"
        self._levels, self._grid, self._order = (14, 48, 8) if self.size == 1 else (9, 16, 4)
        self._corners = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=self.size)))

    def exact(self) -> NoisyAverager | None:
        """Return an averager for one index and one output; None for other links, or if quadrature cannot resolve it."""
        return noisy_averager(self.model, self.noises)

    def footprint(self, draws: int) -> int:
        n = self.size
        cells = self._grid**n + self._levels * draws * (2**n - 1)
        return cells * max(self._order, 3) ** n * (4 + 2 * n)

    def moments(self, y: jax.Array, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        root = cholesky(prior)
        noise, n = self.model.noise, self.size

        def extended(x: jax.Array) -> jax.Array:
            return self.link(omega + root @ x[:n]) + float(np.sqrt(noise)) * x[n:]

        nearest, _ = projected(extended, y, jnp.zeros(n + self.noises), 12)
        reach = _WINDOW + jnp.abs(nearest[:n]).max()

        def residual(x: jax.Array) -> jax.Array:
            return (self.link(omega + root @ x) - y) / float(np.sqrt(noise))

        cells = self._refined(residual, reach, draws)
        return coloured(self._integrated(residual, cells), root)

    def _refined(self, residual: Callable[[jax.Array], jax.Array], reach: jax.Array, draws: int) -> Cubes:
        n = self.size
        axis = (np.arange(self._grid) + 0.5) * 2 / self._grid - 1
        grid = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), -1).reshape(-1, n)
        halves = np.array(list(itertools.product((-0.5, 0.5), repeat=n)))
        first = self._with_urgency(residual, reach * grid, jnp.full(len(grid), reach / self._grid))
        more = draws * (2**n - 1)
        room = self._levels * more
        # Places for later cubes hold cubes of no width, hence of no weight.
        empty = Cubes(jnp.zeros((room, n)), jnp.zeros(room), jnp.full(room, -jnp.inf))
        cells = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first, empty)

        def split(level: jax.Array, cells: Cubes) -> Cubes:
            _, chosen = jax.lax.top_k(cells.urgency.astype(jnp.float32), draws)  # float64 would need a full sort
            half = cells.half[chosen]
            children = cells.centre[chosen] + halves[:, None] * half[:, None]
            new = self._with_urgency(residual, children.reshape(-1, n), jnp.tile(0.5 * half, 2**n))

            # The first child takes the place of its parent; the other children go to the end.
            def placed(old: jax.Array, x: jax.Array) -> jax.Array:
                return jax.lax.dynamic_update_slice_in_dim(
                    old.at[chosen].set(x[:draws]), x[draws:], len(grid) + level * more, 0
                )

            return jax.tree.map(placed, cells, new)

        return jax.lax.fori_loop(0, self._levels, split, cells)

    def _with_urgency(self, residual: Callable[[jax.Array], jax.Array], centre: jax.Array, half: jax.Array) -> Cubes:
        corners = centre[:, None] + self._corners * half[:, None, None]
        values = jax.vmap(jax.vmap(residual))(corners)
        low, high = values.min(1), values.max(1)
        missed = jnp.maximum(0.0, jnp.maximum(low, -high))
        # Between the corners the link may exceed its values there; half the variation is allowed for.
        missed = jnp.maximum(0.0, missed - 0.5 * (high - low))
        log_mass = jnp.max(-0.5 * (corners**2).sum(-1), 1) - 0.5 * (missed**2).sum(-1) + self.size * jnp.log(half)
        rough = ((high - low) ** 2).sum(-1) + (2 * half) ** 2
        return Cubes(centre, half, log_mass + 2 * jnp.log(jnp.minimum(rough, 1.0)))

    def _integrated(self, residual: Callable[[jax.Array], jax.Array], cells: Cubes) -> SampleMoments:
        n = self.size
        nodes, weights = np.polynomial.legendre.leggauss(self._order)
        grid = np.stack(np.meshgrid(*[nodes] * n, indexing="ij"), -1).reshape(-1, n)
        product = np.prod(np.stack(np.meshgrid(*[weights] * n, indexing="ij"), -1).reshape(-1, n), axis=1)
        x = cells.centre[:, None] + grid * cells.half[:, None, None]
        R = jax.vmap(jax.vmap(residual))(x)
        log_weights = jnp.log(product) + n * jnp.log(cells.half)[:, None] - 0.5 * ((x**2).sum(-1) + (R**2).sum(-1))
        constant = 0.5 * (n + self.noises) * np.log(2 * np.pi) + 0.5 * self.noises * np.log(self.model.noise)
        found = weighted_moments(log_weights.ravel() - constant, x.reshape(-1, n))
        mass = jnp.exp(log_weights - constant - found.log_evidence).sum(1)
        spread = ((R.max(1) - R.min(1)) ** 2).sum(-1)
        coarse = (mass * (spread > 16.0)).sum()
        return found._replace(effective_samples=1 / jnp.maximum(coarse, 1e-16))

    def refuse_few_samples(self, effective: np.ndarray) -> None:
        share = 1 / float(np.nanmedian(effective))
        if share > 1 / LEAST_EFFECTIVE_SAMPLES:
            raise FloatingPointError(
                f"in the median sample {share:.3g} of the posterior lies in cells that are too coarse for"
                f" noise={self.model.own.noise:g}; take more draws (splits per level, default {self.draws}), more"
                " noise, or noise=0"
            )
