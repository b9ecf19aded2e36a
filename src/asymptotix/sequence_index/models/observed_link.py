"""What the output of a link shows, in a unit and from an origin of its own.

Units do not matter: c y + b says as much as y. And without noise neither do strictly monotone functions of outputs, nor
outputs that are functions of others. Channels work with an output from which all this has been taken off, so that what
is equivalent is computed with the same numbers, and no tolerance meets a unit.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.compiled import compiled
from ...numerics.precision import double_precision
from ...numerics.quadrature import sobol_normals
from .. import streams
from .link import LinkModel
from .link_program import LinkProgram

#: Draws from which the origin and the unit of an output are read.
_DRAWS = 2**12
#: Quantiles whose distance is the unit, the first pair that differs.
_QUANTILES = ((0.25, 0.75), (0.01, 0.99), (0.0, 1.0))


class ObservedLink:
    """A model whose output says as much as that of another one, of order one.

    Parameters
    ----------
    model : SequenceIndex or MultiIndex

    Attributes
    ----------
    own : SequenceIndex or MultiIndex
        The model.
    indices, tokens : int
    noise : float
        Variance of the noise, in the square of the unit.
    link : callable
        The user's own, for messages.
    analytic : bool
        Whether the link is an analytic function of its indices, as far as its program tells.
    """

    def __init__(self, model: LinkModel) -> None:
        self.own, self.link = model, model.link
        self.indices, self.tokens = model.indices, model.tokens
        self._program = LinkProgram.of(functools.partial(flat_link, model), model.indices * model.tokens)
        self.analytic = self._program.analytic
        self._branches = compiled(jax.vmap(self._program.branches)) if self._program.branching else None
        self._origin, self._unit = self._measured()
        self.noise = model.noise / float(self._unit[0]) ** 2

    def __repr__(self) -> str:
        return repr(self.own)

    def evaluate(self, Z: Any) -> Any:
        """The output (m,) without noise, of one index matrix Z (P, M)."""
        return (self._shown(jnp.ravel(Z)) - self._origin) / self._unit

    @double_precision()
    def branches(self, z: np.ndarray) -> np.ndarray | None:
        """Numbers (m, b) that name the branches of the link at indices (m, n); None where they are not known.

        For the same branches the link is one analytic function.
        """
        if self._branches is None:
            return None
        padded = np.zeros((max(256, 1 << (len(z) - 1).bit_length()), z.shape[1]))  # few compiled programs
        padded[: len(z)] = z
        return np.asarray(self._branches(jnp.asarray(padded)))[: len(z)]

    def _shown(self, z: Any) -> Any:
        return flat_link(self.own, z) if self.own.noise > 0 else self._program.shown(z)

    def log_volume(self, y: Any) -> Any:
        """Log of the volume of the model's own outputs per volume of the outputs here, at one output y (m,)."""
        own = jnp.log(self._unit).sum()
        if self.own.noise > 0:
            return own
        return own + self._program.log_volume(self._origin + self._unit * y)

    @double_precision()
    def _measured(self) -> tuple[np.ndarray, np.ndarray]:
        """Origin and unit of every output; with noise, which is the same for all of them, one unit for all."""
        z = sobol_normals(_DRAWS, self.indices * self.tokens, streams.LINK_UNITS)
        y = np.asarray(compiled(jax.vmap(self._shown))(jnp.asarray(z)))
        origin, unit = np.median(y, axis=0), np.zeros(y.shape[1])
        for low, high in _QUANTILES:
            apart = np.quantile(y, high, axis=0) - np.quantile(y, low, axis=0)
            unit = np.where(unit > 0, unit, apart)
        unit = np.where(unit > 0, unit, 1.0)
        if self.own.noise > 0:
            unit = np.full_like(unit, unit.max())
        return origin, unit


def flat_link(model: Any, z: Any) -> Any:
    """The link as a function R^n -> R^k of the vector of all indices, outputs in the precision of z."""
    y = model.evaluate(z.reshape(model.indices, model.tokens))
    return jnp.ravel(jnp.asarray(y)).astype(z.dtype)
