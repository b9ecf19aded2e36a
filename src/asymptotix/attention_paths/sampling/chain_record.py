"""The record of a Markov chain without its sampler: enough to report the chain, or to continue it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


class ChainSettings(NamedTuple):
    """Options of a chain: warm-up iterations, iterations per draw, number of draws, and target acceptance."""

    warmup: int
    thin: int
    draws: int
    target_accept: float


@dataclass(eq=False)
class ChainRecord:
    """Draws and counts of a chain, which runs now or was run by an earlier call.

    Attributes
    ----------
    settings : ChainSettings
    parts : list of dict
        One entry per block of iterations: observable -> draws, (draw, ...). Paths and outputs share one axis.
    iterations, divergences : int
        Number of all iterations; number of divergent transitions after warm-up.
    leapfrog_steps : float
        Mean number per iteration after warm-up; nan before.
    step_size : float
    seconds : float
        CPU seconds, summed over all threads, without compilation.
    steps_now : int
        Number of leapfrog steps of this call.
    state : array
        State of the sampler as one vector, for a chain that an earlier call has not ended.
    """

    settings: ChainSettings
    parts: list[dict[str, np.ndarray]] = field(default_factory=list)
    iterations: int = 0
    divergences: int = 0
    leapfrog_steps: float = np.nan
    step_size: float = np.nan
    seconds: float = 0.0
    steps_now: int = 0
    state: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def goal(self) -> int:
        """Number of iterations of the whole chain, warm-up included."""
        return self.settings.warmup + self.settings.thin * self.settings.draws

    @property
    def finished(self) -> bool:
        return self.iterations >= self.goal

    @property
    def sampled(self) -> int:
        """Number of iterations so far, after warm-up."""
        return max(self.iterations - self.settings.warmup, 0)

    def draws(self) -> dict[str, np.ndarray]:
        """Return observable -> draws so far, (draw, ...)."""
        return {name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]}

    def packed(self) -> np.ndarray:
        """Return the state of the sampler as one vector."""
        return self.state


def earlier_chain(values: Mapping[str, Any], settings: ChainSettings) -> ChainRecord | None:
    """Return the chain of an earlier outcome, finished or with a state from which it continues.

    ``values`` are the outcome's values, observable -> array, of which a table may have padded the draws with nan. The
    result is None if they have neither all draws nor a state.
    """
    draws = {}
    if "order_parameter_draws" in values:
        U = np.asarray(values["order_parameter_draws"])[: settings.draws]
        size = math.isqrt(math.prod(U.shape[1:]))
        draws["order_parameter"] = U.reshape(len(U), size, size)
        if "path_weights_draws" in values:
            w = np.asarray(values["path_weights_draws"])[: settings.draws]
            draws["path_weights"] = w.reshape(len(w), size, w.shape[-1])
    complete = bool(draws) and len(U) == settings.draws and bool(np.isfinite(U).all())
    if not complete and "chain_state" not in values:
        return None
    found = ChainRecord(
        settings,
        [draws],
        divergences=int(values["divergences"]),
        leapfrog_steps=float(values.get("leapfrog_steps", np.nan)),
        step_size=float(values.get("step_size", np.nan)),
        seconds=float(values["cpu_seconds"]),
        state=np.asarray(values.get("chain_state", ())),
    )
    found.iterations = found.goal if complete else 0
    return found
