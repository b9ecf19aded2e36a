"""The observed output of a link: the information in its output, in standard units.

An output c y + b carries the same information as y. Without noise so does any strictly monotone function of y, and
outputs that are functions of other outputs add no information. Channels work with an output from which unit, origin,
monotone functions and redundant outputs are removed. Equivalent links are thus computed with the same numbers, and
absolute tolerances do not depend on the user's unit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled, in_blocks
from ...numerics.quadrature import sobol_normals
from .. import streams
from .link import LinkModel
from .link_program import LinkProgram
from .scaled_volume import scaled_log_volume

#: Number of draws of the indices that give origin (median) and unit of an output.
_DRAWS = 2**12
#: Pairs of quantiles. The unit of an output is the distance of the first pair that differs.
_QUANTILES = ((0.25, 0.75), (0.01, 0.99), (0.0, 1.0))
#: If the median is farther from zero than this number of units, it is the origin. Otherwise the origin is zero.
_FAR_ORIGIN = 10.0
#: Smallest ratio of the unit of an output to the standard deviation of its noise.
_LEAST_UNIT = 1e-10
#: Beyond this number of index vectors, outputs are computed by a program for exactly this number, not in blocks.
_LONG = 2**16
#: Smallest standard deviation of the noise, in units; noise below it is lost in the rounding of outputs.
_LEAST_DEVIATION = 1e-14


class ObservedLink:
    """A model with the same information in its output as another model, but with outputs of order one.

    Parameters
    ----------
    model : SequenceIndex or MultiIndex

    Attributes
    ----------
    own : SequenceIndex or MultiIndex
        The other model, as the user gave it.
    indices, tokens : int
    noise : float
        Variance of the noise, in squared units of the observed output.
    link : callable
        The user's link, for messages.
    analytic : bool
        Whether the program of the link proves that it is an analytic function of its indices.
    """

    def __init__(self, model: LinkModel) -> None:
        self.own, self.link = model, model.link
        self.indices, self.tokens = model.indices, model.tokens
        self._program = LinkProgram.of(functools.partial(flat_link, model), model.indices * model.tokens)
        self.analytic = self._program.analytic
        self._branches = compiled(jax.vmap(self._program.branches)) if self._program.branching else None
        self._origin, self._unit = self._measured()
        self.noise = self._noise_in_units()

    def __repr__(self) -> str:
        return repr(self.own)

    def evaluate(self, Z: jax.Array) -> jax.Array:
        """Return the observed output (m,) of one index matrix Z (P, M), without noise."""
        return (self._shown(jnp.ravel(Z)) - self._origin) / self._unit

    @functools.cached_property
    def _values_program(self) -> Callable[..., jax.Array]:
        return compiled(jax.vmap(functools.partial(flat_link, self)))

    @functools.cached_property
    def _differentials_program(self) -> Callable[..., jax.Array]:
        return compiled(jax.vmap(jax.jacfwd(functools.partial(flat_link, self))))

    @double_precision()
    def values(self, z: np.ndarray) -> np.ndarray:
        """Return the k observed outputs (m, k) at m index vectors z (m, n), without noise."""
        if len(z) > _LONG:
            return np.array(self._values_program(jnp.asarray(z)))
        return in_blocks(self._values_program, z)

    @double_precision()
    def differentials(self, z: np.ndarray) -> np.ndarray:
        """Return the differentials (m, k, n) of the k observed outputs at m index vectors z (m, n)."""
        return in_blocks(self._differentials_program, z)

    @double_precision()
    def branches(self, z: np.ndarray) -> np.ndarray | None:
        """Return numbers (m, b) that identify the branches of the link at m index vectors z (m, n); None if unknown.

        On all indices with the same branches the link is one analytic function.
        """
        if self._branches is None:
            return None
        return in_blocks(self._branches, z)

    @property
    def branch(self) -> Callable[[jax.Array], jax.Array] | None:
        """Function that identifies the branch of the link at indices z (n,) by numbers (b,), for traced programs.

        None if the link has only one branch, or if its operations do not show the branch.
        """
        return None if self.analytic or self._branches is None else self._program.branches

    def _shown(self, z: jax.Array) -> jax.Array:
        return flat_link(self.own, z) if self.own.noise > 0 else self._program.shown(z)

    def log_volume(self, y: jax.Array, frame: jax.Array | None = None) -> jax.Array:
        """Return the log of the user's output volume per observed output volume, at one observed output.

        Parameters
        ----------
        y : array (m,)
            The observed output.
        frame : array (m, r), optional
            Tangents of the surface on which observed outputs lie, if its dimension r is smaller than the number of
            outputs. The volumes are then volumes on the surface.
        """
        if frame is not None:
            own = self._program.log_volume(self._origin + self._unit * y, self._unit[:, None] * frame)
            return own - scaled_log_volume(jnp.zeros(len(y)), frame)
        own = jnp.log(self._unit).sum()
        if self.own.noise > 0:
            return own
        return own + self._program.log_volume(self._origin + self._unit * y)

    @double_precision()
    def _measured(self) -> tuple[np.ndarray, np.ndarray]:
        """Return origins and units (k,) of the outputs; with noise, which has one variance, all units are equal."""
        z = sobol_normals(_DRAWS, self.indices * self.tokens, streams.LINK_UNITS)
        y = np.asarray(compiled(jax.vmap(self._shown))(jnp.asarray(z)))
        origin, unit = np.median(y, axis=0), np.zeros(y.shape[1])
        for low, high in _QUANTILES:
            apart = np.quantile(y, high, axis=0) - np.quantile(y, low, axis=0)
            unit = np.where(unit > 0, unit, apart)
        unit = np.where(unit > 0, unit, 1.0)
        if self.own.noise > 0:
            # An output far below the noise carries no information in any unit; the limit keeps the noise finite.
            unit = np.full_like(unit, max(unit.max(), _LEAST_UNIT * np.sqrt(self.own.noise)))
        # Subtracting an origin would lose the digits of small values, such as z^20 near zero.
        return np.where(abs(origin) > _FAR_ORIGIN * unit, origin, 0.0), unit

    def _noise_in_units(self) -> float:
        if self.own.noise == 0:
            return 0.0
        deviation = np.sqrt(self.own.noise) / float(self._unit[0])
        if deviation < _LEAST_DEVIATION:
            raise ValueError(
                f"noise must be 0 or visible beside the outputs of {self.link!r}, got the variance {self.own.noise!r}: "
                f"its standard deviation is {deviation:.1g} of the outputs' spread, below their rounding"
            )
        return float(deviation) ** 2


def flat_link(model: LinkModel | ObservedLink, z: jax.Array) -> jax.Array:
    """Evaluate the link as a function R^n -> R^k of the vector z of all indices, in the precision of z."""
    y = model.evaluate(z.reshape(model.indices, model.tokens))
    return jnp.ravel(jnp.asarray(y)).astype(z.dtype)
