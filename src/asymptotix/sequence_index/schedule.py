"""The plan of a message-passing run, from state evolution: which index enters when, and with what variances.

With variances measured on the data (Algorithm 1 as printed) and a small start, the state leaves the Nishimori line
V = I - Q while an index is not learned, and that mode outruns the growth of its overlap. The cure has two halves.
Indices enter one after the other, each from a spectral start that is conditional on what is learned already. And the
variances, a deterministic sequence in the limit of large D, are prescribed by state evolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.linalg import from_logit
from .averages import Averager, QuasiRandomAverager
from .channel import Channel
from .spectral import spectral_theory
from .state_evolution import NO_OVERLAP, StateEvolution
from .unlearned import curvature_at_zero

#: Variance at which an index counts as known; below it single precision has no digits left to gain.
SMALLEST_VARIANCE = 1e-6
#: Overlap given to an index that state evolution says cannot be learned: it is tried all the same.
_HOPELESS = 1e-3
_STEADY = 0.02
_INTERMEDIATE = 40


@dataclass(frozen=True)
class Stage:
    """Part of a run during which the set of iterated indices does not change.

    Attributes
    ----------
    row : int or None
        Index that enters by a spectral start; None where all start from side information or at random.
    active : array (P,) of bool
    start_overlap, start_reaction : float
        Theoretical overlap of the spectral start, and the coefficient of its reaction term.
    growth : float
        alpha f of the entering index; it can be learned where this exceeds one.
    v : array (T+1, P)
        Posterior variance before every iteration and after the last.
    precision : array (T, P)
        Prescribed A = Qhat of every iteration.
    """

    row: int | None
    active: np.ndarray
    start_overlap: float
    start_reaction: float
    growth: float
    v: np.ndarray
    precision: np.ndarray

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.precision)


def refuse_full_matrix(channel: Channel, what: str) -> None:
    """Say that overlaps between different indices are not covered: plans are made row by row."""
    if channel.indices > 1 and not channel.diagonal:
        raise NotImplementedError(
            f"{what} does not cover {channel.indices} indices whose overlap is a full matrix yet; covered are one "
            "index and attention layers of rank one, and any model from side information with variances='empirical'"
        )


def joint_stage(
    evolution: StateEvolution, averages: Averager, alpha: float, *, iterations: int, damping: float
) -> Stage:
    """All indices at once from the overlap of the side information."""
    P = evolution.channel.indices
    active = np.ones(P, bool)
    v = np.full(P, 1 - evolution.side_information)
    trajectory = _trajectory(evolution, averages, alpha, v, active, iterations, damping, steady=0.0)
    return Stage(None, active, evolution.side_information, np.nan, np.nan, *trajectory)


def learning_stages(
    evolution: StateEvolution, averages: Averager, channel: Channel, alpha: float, *, iterations: int, damping: float
) -> list[Stage]:
    """One stage per index, the most unstable first; ``iterations`` bounds the last, joint one.

    ``averages`` and ``channel`` may be of lower precision than those of ``evolution``.
    """
    P = evolution.channel.indices
    nodes = QuasiRandomAverager(channel, 2**12, 1, seed=6)
    v, active, stages = np.ones(P), np.zeros(P, bool), []
    for position in range(P):
        if position == 0:
            curvature = curvature_at_zero(evolution.channel).value
        else:
            curvature = averages(np.diag(v)).curvature.mean(0)
        row = int(np.where(active, -np.inf, curvature).argmax())
        Z, weights, _, posterior = nodes.samples(np.diag(v))
        start = spectral_theory(alpha, posterior.covariance[:, row, :, row, :], Z[:, row], weights)
        overlap = max(start.overlap, _HOPELESS)
        active, v = active.copy(), v.copy()
        active[row], v[row] = True, 1 - overlap
        last = position == P - 1
        length, steady = (iterations, 1e-3) if last else (min(iterations, _INTERMEDIATE), _STEADY)
        trajectory = _trajectory(evolution, averages, alpha, v, active, length, damping, steady)
        stages.append(Stage(row, active, overlap, start.reaction, alpha * curvature[row], *trajectory))
        v = trajectory[0][-1]
    return stages


def _trajectory(
    evolution: StateEvolution,
    averages: Averager,
    alpha: float,
    v: np.ndarray,
    active: np.ndarray,
    iterations: int,
    damping: float,
    steady: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Variances and precisions of at most ``iterations`` steps; ends when the logits move by less than ``steady``."""
    vs, precisions = [v], []
    for _ in range(iterations):
        second = averages(np.diag(v)).second_moment.mean(0)
        hat = np.where(active, alpha * np.diag(second), 0.0)
        precisions.append(hat)
        target = np.where(active, from_logit(evolution.logit_of_precision(hat.clip(1e-300)))[1], 1.0)
        new = (v + damping * (target - v)).clip(SMALLEST_VARIANCE)
        moved = active & (1 - new > NO_OVERLAP) & (new > SMALLEST_VARIANCE)
        change = abs(np.log(new / v) - np.log((1 - new).clip(1e-12) / (1 - v).clip(1e-12)))[moved]
        v = new
        vs.append(v)
        if steady > 0 and (change < steady).all():
            break
    return np.array(vs), np.array(precisions)
