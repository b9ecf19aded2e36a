"""A batch of GAMP runs: data sets of several seeds that pass through the stages of one plan together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...core.problem import Outcome, index_name
from ...core.progress import Progress
from ...core.status import Status
from ...numerics.arrays import Array
from .. import streams
from ..channels.protocol import Channel
from ..models.rank_one import array_namespace
from . import message_passing as mp
from .data_sets import DataSets
from .estimate_quality import errors, overlaps, settled
from .placed_arrays import placed
from .schedule import SMALLEST_VARIANCE, Stage
from .spectral_start import spectral_start

#: If alpha E|g|^2 of an index with variance below _TESTED exceeds theory by the factor _LAG plus four standard errors,
#: the run continues with variances from its own data and with at most the damping _OWN_DAMPING.
_LAG, _TESTED, _OWN_DAMPING = 1.25, 0.95, 0.8
#: Least relative distance of the spectral eigenvalue from the next; below it the status warns of a start that is noise.
_DETACHED = 0.03


class BatchOptions(NamedTuple):
    """Options of the runs of a batch; see :class:`GAMP`.

    ``staged``: directions enter one after the other, each from a spectral start; otherwise all enter at once.
    ``empirical``: variances come from the data in all runs and iterations.
    """

    staged: bool
    empirical: bool
    iterations: int
    damping: float
    jitter: float
    start_scale: float
    side_information: float
    tolerance: float


class GampBatch:
    """Runs of S seeds at one point.

    Attributes
    ----------
    state : MessageState
        Current estimates of all runs.
    own_precision : array of bool (S,)
        Mask of the runs that take A from their own data instead of the plan.
    """

    def __init__(
        self, channel: Channel, labels: Sequence[str], data: DataSets, seeds: Sequence[int], options: BatchOptions
    ) -> None:
        self.channel, self.data, self.seeds, self.options = channel, data, seeds, options
        self.state = mp.MessageState.at_prior(channel, data)
        self.own_precision = np.full(len(seeds), options.empirical)
        self.record = GampRecord(channel, data.teacher, labels)

    def run(self, stages: Sequence[Stage], progress: Progress, label: str) -> list[Outcome]:
        """Run all stages and return one outcome per seed."""
        if not self.options.staged:
            self._start_jointly()
        total = sum(stage.iterations for stage in stages)
        for number, stage in enumerate(stages):
            if stage.frame.shape[1] > 0:
                self._enter(stage)
            for t in range(stage.iterations):
                if self.record.all_failed:
                    break
                self._watch(stage, t, self._iterate(stage, t, number))
                progress.message(f"{label}: iteration {len(self.record.stage)} of {total}")
        contradicted = self.own_precision & (not self.options.empirical)
        return [
            self.record.outcome(k, self.state, stages, self.options, bool(contradicted[k]))
            for k in range(len(self.seeds))
        ]

    def _start_jointly(self) -> None:
        side = self.options.side_information
        if side > 0:  # then the start is the side information; a random start is refused
            self.state.W = np.float32(np.sqrt(side)) * self.data.side
            self.state.V = (1 - side) * self.state.V
            return
        _, *shape = self.state.W.shape
        sources = [np.random.default_rng(streams.random_start_of_run(seed, shape[-1])) for seed in self.seeds]
        draws = np.array([source.normal(size=shape) for source in sources])
        self.state.W = placed(self.options.start_scale * draws)

    def _enter(self, stage: Stage) -> None:
        """Start the entering directions from their spectral estimate, scaled to the overlap that theory predicts."""
        frame, start, state = stage.frame, stage.start, self.state
        covariance = mp.covariance_along(self.channel, self.data, state, frame, stage.active - frame @ frame.T)
        eigenvalues, gaps = np.full((2, len(self.seeds)), np.nan)
        W, g = (np.zeros(x.shape, np.float32) for x in (state.W, state.g))
        self.record.add_lost((~np.isfinite(covariance).all((2, 3, 4, 5))).sum(1), self.data.samples)
        for k, seed in enumerate(self.seeds):
            if self.record.failure[k]:
                continue
            found = spectral_start(self.data.tokens.of_seed(k), covariance[k], seed, frame, start)
            W[k] = frame @ start.calibration @ found.vectors
            g[k] = np.einsum("pi,nim->npm", frame, found.scores)
            eigenvalues[k], gaps[k] = found.eigenvalue, found.gap
            if not found.converged:
                self.record.residual[k, stage.entering] = found.residual
        state.W, state.g = state.W + W, state.g + g
        # Inactive directions had variance one and the reaction of the prior.
        change = start.calibration @ start.reaction - np.eye(frame.shape[1])
        state.reaction = state.reaction + frame @ change @ frame.T
        state.V = state.V - frame @ start.overlap @ frame.T
        self.record.add_start(state, stage.entering, eigenvalues, gaps)

    def _iterate(self, stage: Stage, t: int, number: int) -> np.ndarray:
        """Do iteration t (from 0) of a stage with this ``number``; return alpha times the mean of |g|^2, (S, P)."""
        damping = self.options.damping
        cautious = self.own_precision & self.options.staged
        report = mp.iterate(
            self.channel,
            self.data,
            self.state,
            active=stage.active,
            precision=stage.precision[t],
            own_precision=self.own_precision,
            damping=np.where(cautious, np.minimum(_OWN_DAMPING, damping), damping),
            side_information=self.options.side_information,
            jitter=self.options.jitter,
        )
        self.record.add_lost(report.lost, self.data.samples)
        self.record.add_overflow(finite := np.asarray(np.isfinite(np.asarray(self.state.W)).all((1, 2))))
        if not finite.all():  # zero replaces a failed run, so that the others can continue
            self.state.W = array_namespace(self.state.W).where(finite[:, None, None], self.state.W, 0)
        self.record.add_iteration(self.state, report.empirical_variance, number)
        return report.second_moment

    def _watch(self, stage: Stage, t: int, second_moment: np.ndarray) -> None:
        """Switch runs whose data contradict the prescribed variances to variances from their own data.

        ``second_moment`` (S, P) is alpha times the mean of |g|^2 in iteration t of the stage. If V is smaller than
        the true error, it exceeds A = Qhat(V). Small systems sometimes lag behind state evolution; the prescribed
        variances would then drive them far off the Nishimori line.
        """
        if self.options.empirical or not self.options.staged:
            return
        v = np.diag(stage.V[t])
        tested = (v < _TESTED) & (v > 10 * SMALLEST_VARIANCE)  # at the floor neither number follows state evolution
        # |g|^2 scatters by about 1.6 times its mean from sample to sample.
        limit = _LAG + 4 * 1.6 / np.sqrt(self.data.samples)
        self.own_precision |= (tested & (second_moment > limit * np.diag(stage.precision[t]))).any(1)


class GampRecord:
    """Measurements on S runs of a batch after every iteration, and how each run ended.

    Attributes
    ----------
    overlap : list of arrays (S, P, P)
        Overlap after every iteration.
    variance, data_variance : lists of arrays (S, P)
        Diagonals after every iteration: of V, and of the V that the data's own A would give.
    stage : list of int
        Number of the stage of every iteration.
    eigenvalue, gap, spectral_overlap : arrays (S, P)
        Eigenvalue, its relative distance to the next, and overlap of every row's spectral start; nan without one.
    residual : array (S, P)
        Residual of the spectral start of rows for which Lanczos did not converge; otherwise nan.
    failure : list of str
        Why a run failed; empty if it did not. A failed run stays in the batch for the sake of the other runs, but its
        later iterations are not reported.
    kept : array (S,)
        Number of iterations before the failure of each run.
    """

    def __init__(self, channel: Channel, teacher: Array, labels: Sequence[str]) -> None:
        self.channel, self.teacher, self.labels = channel, teacher, labels
        self.overlap: list[np.ndarray] = []
        self.variance: list[np.ndarray] = []
        self.data_variance: list[np.ndarray] = []
        self.stage: list[int] = []
        self.eigenvalue, self.gap, self.spectral_overlap = np.full((3, *teacher.shape[:2]), np.nan)
        self.residual = np.full(teacher.shape[:2], np.nan)
        self.failure = [""] * len(teacher)
        self.kept = np.zeros(len(teacher), int)

    @property
    def all_failed(self) -> bool:
        """Whether all runs have failed."""
        return all(self.failure)

    def add_lost(self, lost: np.ndarray, samples: int) -> None:
        """Record the numbers (S,) of samples without a posterior; their runs have failed."""
        self._add_failures(lost, lambda k: f"the channel lost {lost[k]} of {samples} samples")

    def add_overflow(self, finite: np.ndarray) -> None:
        """Record whether the estimates are finite, (S,); runs without finite estimates have failed."""
        self._add_failures(~finite, lambda k: "the estimate is not finite")

    def _add_failures(self, failed: np.ndarray, reason: Callable[[int], str]) -> None:
        for k in map(int, np.flatnonzero(failed)):
            self.failure[k] = self.failure[k] or f"failed: {reason(k)} after {len(self.overlap)} iterations"

    def add_start(self, state: mp.MessageState, rows: np.ndarray, eigenvalues: np.ndarray, gaps: np.ndarray) -> None:
        """Record the spectral start of ``rows``, a mask (P,): eigenvalues (S,), relative gaps to the next ones (S,)."""
        found = np.einsum("spp->sp", overlaps(state.W, self.teacher, self.channel))
        self.eigenvalue[:, rows], self.gap[:, rows] = eigenvalues[:, None], gaps[:, None]
        self.spectral_overlap[:, rows] = found[:, rows]

    def add_iteration(self, state: mp.MessageState, data_variance: np.ndarray, stage: int) -> None:
        """Record the state after an iteration, and ``data_variance`` (S, P), the diagonal of V from the data's own A.

        ``stage`` is the number of the stage.
        """
        self.kept += [not failure for failure in self.failure]
        self.overlap.append(overlaps(state.W, self.teacher, self.channel))
        self.variance.append(np.einsum("spp->sp", state.V).copy())
        self.data_variance.append(data_variance)
        self.stage.append(stage)

    def outcome(
        self, k: int, state: mp.MessageState, stages: Sequence[Stage], options: BatchOptions, contradicted: bool
    ) -> Outcome:
        """Return the outcome of run k, with traces up to its failure if it failed.

        ``contradicted``: its data did not fit the prescribed variances, so that measured variances replaced them.
        """
        overlap, variance, data_variance = (
            np.array(trace)[: self.kept[k], k] for trace in (self.overlap, self.variance, self.data_variance)
        )
        values = {
            "overlap_trace": overlap,
            "variance_trace": variance,
            "empirical_variance_trace": data_variance,
            "stage_trace": np.array(self.stage)[: self.kept[k]],
            "eigenvalue": self.eigenvalue[k],
            "eigenvalue_gap": self.gap[k],
            "spectral_overlap": self.spectral_overlap[k],
        }
        if self.failure[k]:
            traces = {name: x for name, x in values.items() if self.kept[k] and name.endswith("_trace")}
            return Outcome(traces, Status.FAILED, words=self.failure[k])
        W, teacher, V = (np.asarray(x[k], float) for x in (state.W, self.teacher, state.V))
        values |= {
            "overlap": overlap[-1],
            **errors(self.channel, W, teacher, V),
            "variance": variance[-1],
            "empirical_variance": data_variance[-1],
        }
        ended_early = stages[-1].iterations < options.iterations
        status, words = settled(overlap, options.tolerance, options.damping, ended_early=ended_early)
        return Outcome(values, status, words=words + self._doubts(k, stages, contradicted))

    def _doubts(self, k: int, stages: Sequence[Stage], contradicted: bool) -> str:
        """Return the part of the status text that names doubts about run k; empty if there are none.

        ``contradicted``: its data did not fit the variances of state evolution, so that measured ones replaced them.
        """
        measured = (
            "; state evolution's variances did not fit this run's data, as happens at small dim, so measured variances"
            " were used; if most seeds say this, increase dim"
        )
        return "".join(self._doubts_on_start(k, stage) for stage in stages) + (measured if contradicted else "")

    def _doubts_on_start(self, k: int, stage: Stage) -> str:
        if not stage.entering.any():
            return ""
        row = int(stage.entering.argmax())
        gap, residual = self.gap[k, row], self.residual[k, row]
        doubts = []
        if stage.growth > 1 and gap < _DETACHED:
            doubts.append(f"is not detached from the bulk (gap {gap:.1%})")
        if residual > 0:
            doubts.append(f"was found to a residual of {residual:.1%} only")
        if not stage.start.converged:
            doubts.append("rests on a theory that did not converge")
        start = f"; the spectral start of {index_name(self.labels, row)} "
        return "".join(start + doubt for doubt in doubts)
