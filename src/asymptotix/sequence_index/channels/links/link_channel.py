"""The base class of the channels of links: observations, units, visible directions; subclasses compute posteriors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from ....numerics.arrays import Array
from ....numerics.precision import double_precision
from ....numerics.programs.compiled import compiled, in_blocks
from ....numerics.quadrature import Estimate, error_of_mean, sobol_normals
from ... import streams
from ...models.observed_link import ObservedLink, flat_link
from ...models.rank_one import array_namespace
from ..mapped import MappedChannel
from ..protocol import DEFAULT_ACCURACY, Accuracy, Averager, Averages, Posterior, PreparedPosterior
from ..row_symmetry import RowSymmetry, same_outputs
from ..supported import SupportedPosterior
from ..tools.recovery_rates import last_recovered
from .level_sets.level_sets import LevelSets
from .level_sets.quick import PosteriorByLevelSets, suited

#: Pairs of a bound and a factor: if the posterior of one sample holds more numbers in memory than the bound, it takes
#: milliseconds, and averages divide their nodes by the factor. The last pair that applies counts.
_EXPENSIVE = ((4096, 8), (65536, 16))
#: Number of differentials that show which directions are visible, and which are recovered last.
_DIFFERENTIALS = 2**10
#: Fraction of the differentials' squared length along a direction below which it counts as rounding.
_HIDDEN = 1e-13
#: Number of draws per randomisation for the mean volume, and the standard deviation of as many wider draws. Smaller:
#: means of slopes that grow far from zero are too small, with an error that does not show it.
_VOLUMES, _WIDER = 2**13, 3.0
#: Largest probability of indices whose volume is left out because the link overflows there.
_LOST = 1e-9
#: Relative rounding of outputs that were stored in single precision, and in double precision.
ROUNDING, _FINE_ROUNDING = 2e-6, 2e-14


def _sizes_along(J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return shares (d,) of the squared length of J along its principal directions, and these directions (d, d).

    J (m, k, d, M) are differentials, here scaled to length one. Shares ascend; directions are columns.
    """
    length = np.sqrt((J**2).sum((2, 3), keepdims=True))
    unit = J / np.where(length > 0, length, np.inf)
    return np.linalg.eigh(np.einsum("akim,akjm->ij", unit, unit) / max(1, np.count_nonzero(length)))


def rounding_of(y: Array) -> jax.Array:
    """Return the differences, shaped like outputs ``y``, up to which rounding separates equal outputs."""
    single = y.astype(np.float32).astype(y.dtype) == y
    return jnp.where(single, ROUNDING, _FINE_ROUNDING) * (1 + jnp.abs(y))


class LinkChannel(MappedChannel):
    """Channel of a link g: the posterior of the vector z of all n = P M indices, given y = g(z) + noise.

    ``outputs`` is the mean rank of dg/dz without noise, and 0 with noise.
    """

    #: Smallest standard deviation of a prior that the points of :meth:`support` resolve; None: no such points.
    finest: float | None = None

    #: Whether the posterior of one sample takes milliseconds.
    slow_posterior: bool = False

    def __init__(self, model: ObservedLink, outputs: float) -> None:
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
            # The scatter of independent draws covers their bias too; symmetrised, the scatter would be too small.
            return super().symmetry
        return self.output_symmetry

    @functools.cached_property
    def output_symmetry(self) -> RowSymmetry:
        return RowSymmetry.of_output(self._without_noise, self.indices, self.tokens, streams.ROW_SYMMETRY)

    def prepared(self, observation: Array, Z: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> PreparedPosterior:
        if self.finest is None:
            return super().prepared(observation, Z, accuracy)
        return SupportedPosterior(self, observation, Z, accuracy)

    def exact(self) -> Averager | None:
        """Return the averager of the observed link by deterministic quadrature; None if averages must be sampled."""
        return None

    def exact_averager(self) -> Averager | None:
        """Return the averager of :meth:`exact` (cached), with log evidence in units of the user's output; or None."""
        return self._exact_averager

    @functools.cached_property
    def _exact_averager(self) -> Averager | None:
        found = self.exact()
        return None if found is None else InOwnUnits(found, self)

    @functools.cached_property
    def _by_level_sets(self) -> PosteriorByLevelSets | None:
        if not (self.slow_posterior and suited(self)):
            return None
        return PosteriorByLevelSets(LevelSets(self.link, self.size, self.model.noise), self.posterior)

    @property
    def quick_posterior(self) -> Callable[..., Posterior]:
        return self._by_level_sets or self.posterior

    def support(self, y: jax.Array, z: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return points (lists, J, n) of the fibre {g = y} of one observation, and log-weights (lists, J).

        ``y`` (k,) is the observation, ``z`` (n,) the true indices, around which points are dense. Entries without a
        point have log-weight -inf. See :mod:`supported`.
        """
        raise NotImplementedError

    @functools.cached_property
    def support_program(self) -> Callable[..., tuple[Array, Array]]:
        """The compiled :meth:`support` of many samples: every argument and result has the axis of samples first."""
        return compiled(jax.vmap(self.support))

    def link(self, z: jax.Array) -> jax.Array:
        """Return the observed outputs (k,), without noise, at the vector of all indices z (n,)."""
        return flat_link(self.model, z)

    def _without_noise(self, Z: np.ndarray) -> np.ndarray:
        """Return the observations (n, k) of index matrices Z (n, P, M), without noise."""
        return self.observe(Z, np.zeros((len(Z), self.noises)))

    def observe(self, Z: Array, noise: Array | None = None) -> Any:
        """Return the observed outputs (n, k), in the units of :class:`ObservedLink`, with the noise of the model.

        Parameters
        ----------
        Z : array (n, P, M)
            Index matrices.
        noise : array (n, k), optional
            Standard normals, multiplied here by the noise's deviation. By default the noise of a sample is a hash of
            its own index matrix: it does not depend on the other samples, and equal indices give equal observations.
        """
        with double_precision():
            z = np.asarray(Z, float).reshape(len(Z), self.size)
            found = self.model.values(z)
            if self.noises:
                normals = self.own_noise(Z) if noise is None else np.asarray(noise, float)
                found = found + np.sqrt(self.model.noise) * normals
        return found if array_namespace(Z) is np else jnp.asarray(found, Z.dtype)

    @double_precision()
    def own_noise(self, Z: Array) -> np.ndarray:
        """Return standard normals (n, k), hashed from the bits of index matrices Z (n, P, M); (n, 0) without noise."""
        if self.noises == 0:
            return np.zeros((len(Z), 0))
        return in_blocks(self._noise_program, np.asarray(Z).reshape(len(Z), self.size))

    @functools.cached_property
    def _noise_program(self) -> Callable[..., jax.Array]:
        return compiled(jax.vmap(self._hashed_noise))

    def _hashed_noise(self, z: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(z, jnp.uint32).ravel()
        key = jax.random.PRNGKey(streams.HASHED_NOISE)
        for i in range(bits.size):
            key = jax.random.fold_in(key, bits[i])
        return jax.random.normal(key, (self.noises,), z.dtype)

    def recovery_bound(self, frame: np.ndarray) -> float:
        if frame.shape[1] == 1:
            return super().recovery_bound(frame)
        J = np.einsum("akpm,pi->akim", self._differentials, frame)
        if not (_sizes_along(J)[0] > _HIDDEN).all():
            return np.inf  # some directions are visible in jumps only, and are never recovered exactly
        directions, rank = last_recovered(J, self.outputs)
        return directions / rank

    @functools.cached_property
    @double_precision()
    def _differentials(self) -> np.ndarray:
        """Differentials (m, k, P, M) of the observation at m draws of the prior."""
        return self.model.differentials(self._looks).reshape(_DIFFERENTIALS, -1, self.indices, self.tokens)

    @functools.cached_property
    def _looks(self) -> np.ndarray:
        return np.random.default_rng(streams.LINK_DIFFERENTIALS).standard_normal((_DIFFERENTIALS, self.size))

    def visible(self, frame: np.ndarray) -> np.ndarray | None:
        sizes, axes = _sizes_along(np.einsum("akpm,pi->akim", self._differentials, frame))
        seen = sizes > _HIDDEN
        if seen.all():
            return frame
        Z = self._looks.reshape(-1, self.indices, self.tokens)
        hidden = frame @ axes[:, ~seen]
        moved = Z + hidden @ (hidden.T @ Z[::-1])
        if not same_outputs(self._without_noise(moved), self._without_noise(Z)):
            return None  # jumps depend on directions that the differentials do not show
        return frame @ axes[:, seen]

    @functools.cached_property
    def _own_program(self) -> Callable[..., jax.Array]:
        return compiled(jax.vmap(functools.partial(flat_link, self.model.own)))

    def model_output(self, Z: Array) -> Any:
        """Return the output (n, k) of the user's link, without noise."""
        if array_namespace(Z) is jnp:
            return self._own_program(Z.reshape(len(Z), self.size))
        with double_precision():
            return in_blocks(self._own_program, np.reshape(Z, (len(Z), self.size)))

    @functools.cached_property
    def _volume_program(self) -> Callable[..., jax.Array]:
        return compiled(jax.vmap(self.model.log_volume))

    @functools.cached_property
    def _tangents_program(self) -> Callable[..., tuple[jax.Array, jax.Array]]:
        return compiled(jax.vmap(lambda z: (self.link(z), jax.jacfwd(self.link)(z))))

    @functools.cached_property
    @double_precision()
    def observations_on_surface(self) -> bool:
        """Whether observations lie on a surface: without noise, if the rank of g is below its number of outputs."""
        numbers = jax.eval_shape(self.link, jax.ShapeDtypeStruct((self.size,), jnp.float64)).shape[0]
        return self.noises == 0 and 0 < self.outputs <= numbers - 1

    @double_precision()
    def log_output_volume(self, observation: Array) -> np.ndarray:
        """Return log |dy / d observation| (n,), with y the user's output; zero where the observation is discrete.

        For observations on a surface the mean is returned, because their tangents are known at the indices only.
        """
        y = np.asarray(observation, float)
        if self.noises == 0 and self.outputs == 0:
            return np.zeros(len(y))
        if self.observations_on_surface:
            return np.full(len(y), float(self.mean_log_volume.value))
        return np.asarray(self._volume_program(y))

    @double_precision()
    def log_volume_at(self, z: np.ndarray) -> np.ndarray:
        """Return log |dy / d observation| (n,) on the surface of observations, at indices z (n, size).

        Here y is the user's output. Zero where the link is locally constant, nan where its slope is not finite.
        """
        y, J = in_blocks(self._tangents_program, z)
        rank = int(np.ceil(self.outputs))
        finite = np.atleast_1d(np.isfinite(J).all((1, 2)))
        if rank < self.size:
            _, _, rows = np.linalg.svd(np.where(finite[:, None, None], J, 0.0), full_matrices=False)
            J = J @ rows[:, :rank].swapaxes(1, 2)
        volumes = np.where(finite, in_blocks(self._volume_program, y, J), np.nan)
        return np.where((J == 0).all((1, 2)), 0.0, volumes)

    @functools.cached_property
    def mean_log_volume(self) -> Estimate:
        """Prior mean of log |dy / d observation|, with y the user's output: log evidence of y is lower by it."""
        means = np.array([self._mean_log_volume_of(row) for row in range(8)])
        return Estimate(means.mean(), error_of_mean(means))

    def _mean_log_volume_of(self, row: int) -> float:
        """Return E log |dy / d observation| from the randomisation number ``row``.

        Half of the draws are wider than the prior, with importance weights: the means of slopes such as those of
        exp(-exp(5z)) come mostly from indices far from zero.
        """
        z = sobol_normals(_VOLUMES, self.size, (streams.OUTPUT_VOLUMES, row))
        z = np.concatenate([z, _WIDER * sobol_normals(_VOLUMES, self.size, (streams.OUTPUT_VOLUMES, 8 + row))])
        density_ratio = 0.5 * (1 - _WIDER**-2) * (z**2).sum(1) - self.size * np.log(_WIDER)
        weights = expit(-density_ratio)
        weights /= weights.sum()
        if self.observations_on_surface:
            found = self.log_volume_at(z)
        else:
            found = self.log_output_volume(self._without_noise(z.reshape(-1, self.indices, self.tokens)))
        lost = ~np.isfinite(found)  # where the link overflows
        if weights[lost].sum() < _LOST:
            found = np.where(lost, 0.0, found)
        return float(weights @ found)

    @property
    def volume_error(self) -> float:
        return float(self.mean_log_volume.error)


class InOwnUnits(Averager):
    """Averager ``averages`` of a link, with its evidence converted by ``channel`` to a density of the user's output."""

    def __init__(self, averages: Averager, channel: LinkChannel) -> None:
        self._averages, self._channel = averages, channel
        self.accuracy = averages.accuracy

    def __call__(self, V: np.ndarray) -> Averages:
        found = self._averages(V)
        return found._replace(log_evidence=found.log_evidence - self._channel.mean_log_volume.value)

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._averages.moments_and_operators(V, frame, basis)
