"""Chains of the No-U-Turn sampler in compiled blocks, which can report progress, stop between blocks and resume.

Programs are compiled once per kind of posterior and shape of its data; the data are arguments. How a chain is cut into
blocks has no influence on its draws. The sampler is NumPyro's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ...numerics.arrays import Array
from ...numerics.interrupts import steps_of_next_call
from ...numerics.precision import double_precision
from .chain_record import ChainRecord, ChainSettings

if TYPE_CHECKING:
    from numpyro.infer.hmc import HMCState

    Data = TypeVar("Data")

#: Most iterations in one block. Larger: progress and interrupts wait longer. Smaller: more overhead.
BLOCK = 100
#: Least number of warm-up iterations per coordinate for a dense mass matrix, the posterior's covariance. With fewer
#: iterations only the variances are learned, because a covariance from so few iterations makes sampling slower.
DENSE_ITERATIONS = 5


class LogPosterior(Protocol):
    """Posterior that a chain samples, in coordinates z (size,) that have about unit variance under the prior.

    It is hashable and holds everything that decides which program is compiled; all numbers are in ``data``. ``observe``
    returns observable -> value at z.
    """

    @property
    def size(self) -> int: ...

    def log_density(self, z: jax.Array, data: Any) -> Array: ...

    def observe(self, z: jax.Array, data: Any) -> dict[str, Array]: ...


class ChainPrograms(NamedTuple):
    """Compiled functions of a chain's sampler.

    ``start(z, key, data)`` returns the first state, ``advance(state, data, count)`` the state and block after ``count``
    iterations, ``observe(z, data)`` observable -> values at many z.
    """

    start: Callable[..., HMCState]
    advance: Callable[..., tuple[HMCState, ChainBlock]]
    observe: Callable[..., dict[str, jax.Array]]


class ChainBlock(NamedTuple):
    """Positions (BLOCK, size), numbers of leapfrog steps and divergence flags (BLOCK,) of up to BLOCK iterations."""

    z: jax.Array
    steps: jax.Array
    diverging: jax.Array


@functools.lru_cache(maxsize=32)
def programs(posterior: LogPosterior, warmup: int, target_accept: float) -> ChainPrograms:
    from numpyro.infer.hmc import hmc

    def potential(data: object) -> Callable[[jax.Array], Array]:
        return lambda z: -posterior.log_density(z, data)

    begin, step = hmc(potential_fn_gen=potential, algo="NUTS")

    def start(z: jax.Array, key: jax.Array, data: object) -> HMCState:
        options = {"target_accept_prob": target_accept, "dense_mass": DENSE_ITERATIONS * posterior.size <= warmup}
        return begin(z, warmup, step_size=0.1, model_args=(data,), rng_key=key, **options)

    def advance(state: HMCState, data: object, count: jax.Array) -> tuple[HMCState, ChainBlock]:
        def body(i: jax.Array, carried: tuple[HMCState, ChainBlock]) -> tuple[HMCState, ChainBlock]:
            state, block = carried
            state = step(state, (data,))
            new = ChainBlock(state.z, state.num_steps, state.diverging)
            return state, jax.tree.map(lambda rows, row: rows.at[i].set(row), block, new)

        empty = ChainBlock(jnp.zeros((BLOCK, posterior.size)), jnp.zeros(BLOCK, int), jnp.zeros(BLOCK, bool))
        return jax.lax.fori_loop(0, count, body, (state, empty))

    def observe(z: jax.Array, data: object) -> dict[str, jax.Array]:
        return jax.lax.map(lambda row: posterior.observe(row, data), z)

    return ChainPrograms(jax.jit(start), jax.jit(advance), jax.jit(observe))


@double_precision()
def placed(data: Data) -> Data:
    """Copy the data to the device (CPU or GPU) and return them; called once for all chains of a point."""
    return jax.tree.map(jnp.asarray, data)


class Chain(ChainRecord):
    """One Markov chain that runs: its record, and the state of its sampler.

    Parameters
    ----------
    posterior, data
        The posterior to sample, and the data that its functions take.
    settings
        Options of the sampler.
    entropy
        Integers that seed the chain: with posterior, data and settings they determine every draw.
    """

    @double_precision()
    def __init__(
        self, posterior: LogPosterior, data: object, settings: ChainSettings, entropy: tuple[int, ...]
    ) -> None:
        super().__init__(settings)
        self.posterior = posterior
        self._programs = programs(posterior, settings.warmup, settings.target_accept)
        self._data = placed(data)
        rng = np.random.default_rng(entropy)
        key = rng.integers(0, 2**32, size=2, dtype=np.uint32)
        self._state = self._programs.start(rng.standard_normal(posterior.size), key, self._data)
        if not np.isfinite(self.energy):
            raise FloatingPointError(
                "the posterior is not finite at the start of a chain: K + T I is singular in double precision, "
                "a higher temperature is needed"
            )
        self._block, self._steps = 10, 0
        # Compile here, in one thread, so that the chains do not all compile at the same time.
        self._programs.advance(self._state, self._data, 0)
        self.parts.append(self._observed(np.zeros((0, posterior.size))))

    @property
    def energy(self) -> float:
        """-ln p of the posterior at the current position."""
        return float(self._state.potential_energy)

    @double_precision()
    def advance(self) -> int:
        """Advance by one block; return the number of iterations."""
        began = time.perf_counter()
        count = min(self._block, self.goal - self.iterations)
        state, block = self._programs.advance(self._state, self._data, count)
        z, steps, diverging = (np.asarray(rows)[:count] for rows in block)
        number = self.iterations + 1 + np.arange(count) - self.settings.warmup
        sampled = number > 0
        part = self._observed(z[sampled & (number % self.settings.thin == 0)])
        if not all(np.isfinite(rows).all() for rows in part.values()):
            raise FloatingPointError(f"a draw is not finite after {self.iterations} iterations of the chain")
        self.parts.append(part)
        self.steps_now += int(steps.sum())
        self.divergences += int(diverging[sampled].sum())
        self._go_to(state, self.iterations + count, self._steps + int(steps[sampled].sum()))
        self._block = steps_of_next_call(count, time.perf_counter() - began, BLOCK)
        return count

    def _go_to(self, state: HMCState, iterations: int, steps: int) -> None:
        self._state, self.iterations, self._steps = state, iterations, steps
        self.step_size = float(state.adapt_state.step_size)
        self.leapfrog_steps = steps / self.sampled if self.sampled else np.nan

    def _observed(self, z: np.ndarray) -> dict[str, np.ndarray]:
        # Pad to BLOCK rows, so that one program serves all blocks.
        padded = np.zeros((BLOCK, self.posterior.size))
        padded[: len(z)] = z
        found = self._programs.observe(padded, self._data)
        return {name: np.asarray(rows)[: len(z)] for name, rows in found.items()}

    @double_precision()
    def packed(self) -> np.ndarray:
        return np.asarray(ravel_pytree(self._state)[0], dtype=np.float64)

    @double_precision()
    def restore(self, earlier: ChainRecord) -> None:
        """Continue from the state of an earlier chain of the same posterior; draws beyond that state are ignored."""
        flat, unravel = ravel_pytree(self._state)
        state = unravel(jnp.asarray(earlier.state[: len(flat)], flat.dtype))
        self.iterations = int(state.i)
        count = self.sampled // self.settings.thin
        self.parts = [{name: earlier.parts[0].get(name, rows)[:count] for name, rows in self.parts[0].items()}]
        if any(len(rows) < count or np.isnan(rows).any() for rows in self.parts[0].values()):
            raise ValueError(f"the chain to go on with must hold the {count} draws that its state tells of, got fewer")
        self.divergences, self.seconds = earlier.divergences, earlier.seconds
        steps = round(earlier.leapfrog_steps * self.sampled) if self.sampled else 0
        self._go_to(state, self.iterations, steps)
