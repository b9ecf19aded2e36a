"""What the channels of all links share: the link as a function of the vector of all indices, and noise."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.compiled import compiled
from ....numerics.precision import double_precision
from ... import streams
from ...models.link import LinkModel
from ...models.rank_one import array_namespace
from ..mapped import MappedChannel
from ..protocol import DEFAULT_ACCURACY, Accuracy, PreparedPosterior
from ..row_symmetry import RowSymmetry
from ..supported import SupportedPosterior
from ..tools.recovery_rates import last_recovered

#: Where one posterior holds more than so many numbers at once it costs milliseconds, and nodes are fewer by a factor.
_EXPENSIVE = ((4096, 8), (65536, 16))
#: Differentials that show which directions are recovered last.
_DIFFERENTIALS = 2**10
#: Outputs may have been rounded to single precision before they come back.
ROUNDING = 2e-6


class LinkChannel(MappedChannel):
    """The posterior of the indices under a link g, one sample at a time."""

    #: Smallest standard deviation of a prior for which :meth:`support` is good; None where there is none.
    finest: float | None = None

    def __init__(self, model: LinkModel, outputs: float) -> None:
        super().__init__(model.indices, model.tokens, outputs)
        self.model = model

    def __str__(self) -> str:
        return str(self.model)

    @property
    def cost(self) -> int:
        numbers = self.footprint(self.draws)
        return max((factor for bound, factor in _EXPENSIVE if numbers > bound), default=1)

    @functools.cached_property
    def symmetry(self) -> RowSymmetry:
        if self.stochastic and self.finest is None:
            # The scatter of draws anew stands for their bias too: made symmetric, it would be too small for that.
            return super().symmetry
        return self.output_symmetry

    @functools.cached_property
    def output_symmetry(self) -> RowSymmetry:
        return RowSymmetry.of_output(self.model_output, self.indices, self.tokens, streams.ROW_SYMMETRY)

    def prepared(self, observation: Any, Z: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> PreparedPosterior:
        if self.finest is None:
            return super().prepared(observation, Z, accuracy)
        return SupportedPosterior(self, observation, Z, accuracy)

    def support(self, y: Any, z: Any, key: Any) -> tuple[Any, Any]:
        """Points (lists, J, n) of the fibre of one observation, and their log-weights (lists, J), -inf for none.

        ``y`` (k,) is the observation, ``z`` (n,) the true indices, around which points crowd; see :mod:`supported`.
        """
        raise NotImplementedError

    @functools.cached_property
    def support_program(self) -> Any:
        """:meth:`support`, compiled, for many samples."""
        return compiled(jax.vmap(self.support))

    def link(self, z: Any) -> Any:
        """The link as a function R^n -> R^k, float outputs."""
        return flat_link(self.model, z)

    @functools.cached_property
    def _link_program(self) -> Any:
        """The link of many samples, compiled: one by one its operations would be, for every number of them."""
        return compiled(jax.vmap(self.link))

    def observe(self, Z: Any, noise: Any = None) -> Any:
        """The outputs (n, k), with the noise of the model.

        Parameters
        ----------
        Z : array (n, P, M)
        noise : array (n, k), optional
            Standard normals. By default the noise of a sample is a hash of its own index matrix: it does not depend
            on the other samples, and equal indices give equal observations.
        """
        xp = array_namespace(Z)
        with double_precision() if xp is np else contextlib.nullcontext():
            z = jnp.asarray(Z).reshape(len(Z), self.size)
            y = self._link_program(z)
            if self.noises:
                normals = jax.vmap(self._hashed_noise)(z) if noise is None else jnp.asarray(noise)
                y = y + np.sqrt(self.model.noise) * normals.astype(y.dtype)
            return y if xp is jnp else np.array(y)

    def _hashed_noise(self, z: Any) -> Any:
        bits = jax.lax.bitcast_convert_type(z, jnp.uint32).ravel()
        key = jax.random.PRNGKey(streams.HASHED_NOISE)
        for i in range(bits.size):
            key = jax.random.fold_in(key, bits[i])
        return jax.random.normal(key, (self.noises,), z.dtype)

    def recovery_bound(self, frame: np.ndarray) -> float:
        if frame.shape[1] == 1:
            return super().recovery_bound(frame)
        z = np.random.default_rng(streams.LINK_DIFFERENTIALS).standard_normal((_DIFFERENTIALS, self.size))
        with double_precision():
            J = np.asarray(compiled(jax.vmap(jax.jacfwd(self.link)))(jnp.asarray(z)))
        J = J.reshape(len(z), -1, self.indices, self.tokens)
        directions, rank = last_recovered(np.einsum("akpm,pi->akim", J, frame), self.outputs)
        return directions / rank

    def model_output(self, Z: Any) -> Any:
        """The output without noise, (n, k)."""
        xp = array_namespace(Z)
        with double_precision() if xp is np else contextlib.nullcontext():
            y = self._link_program(jnp.asarray(Z).reshape(len(Z), self.size))
            return y if xp is jnp else np.array(y)


def flat_link(model: LinkModel, z: Any) -> Any:
    """The link as a function R^n -> R^k of the vector of all indices, outputs in the precision of z."""
    y = model.evaluate(z.reshape(model.indices, model.tokens))
    return jnp.ravel(jnp.asarray(y)).astype(z.dtype)
