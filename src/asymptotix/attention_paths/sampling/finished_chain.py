"""A chain of an earlier call that has all its draws: it is not run again, but reported together with new chains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from .chains import ChainSettings


@dataclass(frozen=True, eq=False)
class FinishedChain:
    """Values of a finished chain, with the attributes of :class:`Chain` that a report needs.

    Parameters
    ----------
    settings
        Options of its run.
    values
        Values of its outcome.
    """

    settings: ChainSettings
    values: Mapping[str, Any]

    finished: ClassVar[bool] = True
    steps_now: ClassVar[int] = 0

    @property
    def iterations(self) -> int:
        """Number of iterations done, which is all of them."""
        return self.goal

    @property
    def goal(self) -> int:
        return self.settings.warmup + self.sampled

    @property
    def sampled(self) -> int:
        return self.settings.thin * self.settings.draws

    @property
    def divergences(self) -> int:
        return int(self.values["divergences"])

    @property
    def step_size(self) -> float:
        return float(self.values["step_size"])

    @property
    def leapfrog_steps(self) -> float:
        return float(self.values["leapfrog_steps"])

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that the chain used."""
        return float(self.values["cpu_seconds"])

    def draws(self) -> dict[str, np.ndarray]:
        """Return observable -> draws, with paths and outputs in one axis."""
        U = np.asarray(self.values["order_parameter_draws"])[: self.settings.draws]
        size = math.isqrt(math.prod(U.shape[1:]))
        found = {"order_parameter": U.reshape(len(U), size, size)}
        if "path_weights_draws" in self.values:
            weights = np.asarray(self.values["path_weights_draws"])[: self.settings.draws]
            found["path_weights"] = weights.reshape(len(weights), size, -1)
        return found


def has_all_draws(values: Mapping[str, Any] | None, settings: ChainSettings) -> bool:
    """Return whether the values of an earlier outcome (padded with nan in a table) hold all draws of its chain."""
    if values is None or "order_parameter_draws" not in values:
        return False
    rows = np.asarray(values["order_parameter_draws"])[: settings.draws]
    return len(rows) == settings.draws and bool(np.isfinite(rows).all())
