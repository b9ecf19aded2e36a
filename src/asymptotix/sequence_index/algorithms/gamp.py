"""Generalised approximate message passing: the algorithm that state evolution describes, at finite size.

The algorithm is Algorithm 1 of Troiani et al., arXiv:2502.00901, derived in Appendix D.3 there, with side information
in D.4. The start in stages and the prescribed variances are ours.

Equations si-gamp, si-gamp-weights of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np

from ...core.problem import Outcome, Problem
from ...core.progress import Progress, Say, clock, under
from ...core.runs import AlgorithmOnSamples, PointRuns
from ...numerics import checks
from ...numerics.memory import physical_memory, refuse_beyond_memory
from ...numerics.precision import carried
from ...numerics.threads import one_blas_thread
from .. import streams
from ..channels.protocol import Channel
from ..theory import BayesProblem, SequenceIndexTheory
from .data_sets import draw_data, drawn_tokens
from .gamp_batch import BatchOptions, GampBatch
from .message_passing import compile_ahead, posterior_in_runs
from .placed_arrays import on_cpu
from .schedule import PlanNodes, Stage, joint_stage, learning_stages

STARTS = ("auto", "staged", "side_information", "random")
VARIANCES = ("state_evolution", "empirical")
#: Number of nodes for the averages of a plan, on a CPU and on an accelerator. A CPU takes half as many if a run has
#: fewer samples and diagonal overlaps: A of two layers is then known to 1 %; on N samples it scatters by 160 %/sqrt(N).
_PLAN_NODES = 2**11, 2**13
#: Largest number of samples whose posterior is timed before the first run, for slow channels and for others. If a run
#: has fewer samples, the program that is compiled for the timing serves the first runs too.
_TIMED_SLOW, _TIMED = 2**6, 2**12
#: Seconds of preparation, or of estimated work, from which a progress line is shown before the first run.
_SILENT_SECONDS = 3.0
#: Multiplications per second in a pass through the tokens, a low estimate for one core. Larger: the announced time is
#: too short.
_PRODUCTS_PER_SECOND = 2e9
#: Largest size in bytes of the data of seeds that run together.
_BATCH_BYTES = 2**31
#: Tokens are kept if they take at most this fraction of the memory; otherwise they are drawn again in every pass.
_KEPT_SHARE = 0.5


@dataclass(frozen=True)
class GAMP(AlgorithmOnSamples):
    """Message passing for ``BayesOptimal`` problems with a channel.

    Parameters
    ----------
    start : "auto", "staged", "side_information" or "random"
        "staged": directions enter one after the other, each from the spectral estimate conditional on the directions
        learned before. "side_information": all directions start from the problem's side information. "random": all
        directions start from W ~ start_scale N(0, 1), V = I. "auto": "side_information" if the problem has some, else
        "staged".
    variances : "state_evolution" or "empirical"
        Prescribe A (in the variances and in the reaction terms) by state evolution, or measure it on the data as in
        the printed Algorithm 1. In both cases ``empirical_variance`` reports the variance from the data's A.
    iterations : int
        Largest number of iterations of the last stage, in which all directions are iterated. Earlier stages end when
        state evolution is steady.
    damping : float
        Share of the new iterate, in (0, 1]; 1 is undamped.
    jitter : float
        Number that is added to the diagonal of V inside g_out.
    start_scale : float
        Standard deviation of the random start.
    stream : bool, optional
        Draw the tokens again in every pass instead of keeping them. The memory is then that of the samples' scores and
        of one block of tokens; otherwise it grows with N D. Default: True if the tokens would take more than half of
        the memory. The data are the same in either case.
    tolerance : float
        A run has converged if no diagonal overlap moved by more than this in one of its last four iterations, nor
        drifted by more than this over the last eight, beyond the noise of the drift.

    Notes
    -----
    From a small random start (``start_scale=0.1``) Algorithm 1 mostly fails to learn the first layer of a two-layer
    model: its variances leave the Nishimori line, and this deviation grows faster than the overlap. Learning in stages
    with prescribed variances does not fail. If every row of the weights may change its sign on its own, the reported
    overlap is

        overlap[i, j] = (w_i.w*_j)(w_i.w*_i) / (|w_i|^2 |w*_i| |w*_j|).

    It needs no choice of signs and tends to Q in the limit of large D; its diagonal is the squared cosine. For other
    models the overlap is the part of the teacher's rows in the span of the estimate's rows. It tends to Q even if a
    symmetry of the model (permutations or rotations of the rows of a layer) has acted on the estimate.

    Seeds run together in single precision. The order of summation depends on the seeds that run together, so that the
    numbers of a run may differ by rounding from those of the same run alone.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> runs = asx.simulate(problem, asx.GAMP(), alpha=2.0, dim=100, seeds=2, progress=False)
    >>> runs.overlap.values.ravel().round(2)                             # everything is known
    array([1., 1.])
    """

    start: str = "auto"
    variances: str = "state_evolution"
    iterations: int = 60
    damping: float = 1.0
    jitter: float = 0.0
    start_scale: float = 1.0
    stream: bool | None = None
    tolerance: float = 1e-2

    needs_dim: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.one_of("start", self.start, STARTS)
        checks.one_of("variances", self.variances, VARIANCES)
        object.__setattr__(self, "iterations", checks.integer("iterations", self.iterations, 1))
        for name in ("damping", "start_scale"):
            object.__setattr__(self, name, float(checks.positive(name, getattr(self, name))))
        object.__setattr__(self, "jitter", float(checks.non_negative("jitter", self.jitter)))
        object.__setattr__(self, "tolerance", checks.share("tolerance", self.tolerance))
        if self.damping > 1:
            raise ValueError(f"damping must be in (0, 1] (1 is undamped), got {self.damping}")
        if self.stream is not None and not isinstance(self.stream, bool):
            raise TypeError(f"stream must be True, False or None (automatic), got {self.stream!r}")
        if self.start == "random" and self.variances == "state_evolution":
            raise ValueError(
                "start='random' needs variances='empirical': state evolution knows no overlap to start from"
            )

    @classmethod
    def algorithm1(cls, iterations: int = 40) -> GAMP:
        """Return Algorithm 1 as published: random start, variances from the data, damping 0.8, V + 1e-3.

        Source: Troiani et al., arXiv:2502.00901, Algorithm 1, and Appendix E.3 for the term added to V. The damping is
        from the authors' code.
        """
        return cls(start="random", variances="empirical", iterations=iterations, damping=0.8, jitter=1e-3)

    def check(self, problem: Problem) -> None:
        """Refuse other problems than Bayes-optimal sequence-index problems, and a start that does not fit."""
        accepted = "BayesOptimal(...) of DeepAttention, InfiniteDepthAttention, SequenceIndex or MultiIndex"
        side = sequence_theory_of(problem, f"GAMP runs on {accepted}").problem.side_information
        if self.start == "side_information" and side == 0:
            raise ValueError("start='side_information' needs a problem with side_information > 0, got 0")
        if self.start in ("random", "staged") and side > 0:
            raise ValueError(
                f"start={self.start!r} is for problems without side information, got side_information={side}"
            )

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        per_index = ("iteration", "index")
        own = {"variance_trace": per_index, "empirical_variance_trace": per_index, "stage_trace": ("iteration",)}
        spectral = dict.fromkeys(("eigenvalue", "eigenvalue_gap", "spectral_overlap"), ("index",))
        return {**problem.dimensions(), **own, **spectral, "variance": ("index",), "empirical_variance": ("index",)}

    def trace_options(self, problem: Problem) -> Mapping[str, float]:
        if self._start(sequence_theory_of(problem)) != "side_information":
            raise ValueError(
                "state evolution follows message passing iteration by iteration from side information only; run "
                "BayesOptimal(model, side_information=0.05), say"
            )
        return {"iterations": self.iterations, "damping": self.damping}

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Refuse sizes that do not fit into memory, and dimensions too small for the spectral start."""
        theory = sequence_theory_of(problem)
        # The spectral start needs the eigenvectors of all directions that enter together, and the next eigenvalue.
        least = 2 * theory.channel.indices if self._start(theory) == "staged" else 2
        if runs.dim < least:
            raise ValueError(f"dim must be at least {least} for message passing on this model, got {runs.dim}")
        self._memory_plan(theory.channel, runs.samples, runs.dim)

    def run_points(
        self,
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Show an upper estimate of the total time, then run one point after the other.

        Yield (position in ``points``, position in ``seeds``, outcome).
        """
        assert dim is not None  # the verb asks for it
        self._announce(sequence_theory_of(problem), list(self._runs(points, dim, seeds)), progress)
        yield from super().run_points(problem, points, dim=dim, seeds=seeds, progress=progress)

    def _announce(self, theory: SequenceIndexTheory, points: Sequence[PointRuns], progress: Progress) -> None:
        """Time one posterior, show an upper estimate of the time of all runs, and a progress line while compiling."""
        with ThreadPoolExecutor(1) as pool:
            timed = pool.submit(_seconds_per_posterior, theory.channel, points[0].samples * len(points[0].seeds))
            if not wait([timed], timeout=_SILENT_SECONDS).done:
                progress.announce(f"compiling the posterior of {theory.channel}")
            while not wait([timed], timeout=_SILENT_SECONDS).done:
                progress.message("compiling")
        seconds = 0.0
        for runs in points:
            sizes = runs.samples * theory.channel.indices * theory.channel.tokens
            each = runs.samples * timed.result() + 4 * sizes * runs.dim / _PRODUCTS_PER_SECOND
            seconds += len(runs.seeds) * self.iterations * each
        count = sum(len(runs.seeds) for runs in points)
        if seconds > _SILENT_SECONDS:
            progress.announce(f"at most about {clock(seconds)} for {count} {'run' if count == 1 else 'runs'}")

    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Run the seeds of a point, together as far as memory allows; yield (position of the seed, outcome)."""
        theory = sequence_theory_of(problem)
        stream, together = self._memory_plan(theory.channel, runs.samples, runs.dim)
        firsts, parts = zip(*runs.batches(together), strict=True)
        prepared = partial(self._batch, theory, runs, stream)
        with ThreadPoolExecutor(1) as pool:
            first_batch = pool.submit(carried(prepared), parts[0])  # draws and compiles while the plan is made
            stages = self._plan(theory, runs, under(f"{runs.label}: variances from state evolution", progress.message))
            batches = chain([first_batch.result()], map(prepared, parts[1:]))
            del first_batch  # otherwise the first data would stay in memory with later ones
        for first, batch in zip(firsts, batches, strict=True):
            with one_blas_thread():
                outcomes = batch.run(stages, progress, runs.label)
            for k, outcome in enumerate(outcomes):
                yield first + k, outcome

    def _start(self, theory: SequenceIndexTheory) -> str:
        if self.start != "auto":
            return self.start
        return "side_information" if theory.problem.side_information > 0 else "staged"

    def _batch(self, theory: SequenceIndexTheory, runs: PointRuns, stream: bool, seeds: Sequence[int]) -> GampBatch:
        """Return the runs of some ``seeds`` at a point, with data drawn and (on an accelerator) programs compiled.

        ``stream``: tokens are drawn again in every pass.
        """
        side, channel = theory.problem.side_information, theory.channel
        options = BatchOptions(
            staged=self._start(theory) == "staged",
            empirical=self.variances == "empirical",
            iterations=self.iterations,
            damping=self.damping,
            jitter=self.jitter,
            start_scale=self.start_scale,
            side_information=side,
            tolerance=self.tolerance,
        )
        data = draw_data(channel, runs.samples, runs.dim, seeds, side, stream=stream)
        batch = GampBatch(channel, theory.index_labels(), data, seeds, options)
        if not on_cpu():
            compile_ahead(data, batch.state)
        return batch

    def _memory_plan(self, channel: Channel, samples: int, dim: int) -> tuple[bool, int]:
        """Return whether tokens are drawn again in every pass, and how many seeds run together."""
        P, M = channel.indices, channel.tokens
        drawn = drawn_tokens(channel, np.zeros(1), samples, dim)
        kept = 4 * samples * drawn.shape[2] * dim
        if not on_cpu():
            kept *= 2  # products are tuned on a copy of the tokens
        memory = physical_memory()
        stream = memory is not None and kept > _KEPT_SHARE * memory if self.stream is None else self.stream
        # In addition to its tokens a run holds some ten arrays of the size of the scores, and covariances of a block.
        rest = 4 * (10 * samples * P * M + 10 * P * dim)
        what = f"one run (alpha={samples / dim:g}, dim={dim})"
        if not stream:
            refuse_beyond_memory(kept + rest, what, "stream=True, which draws tokens anew in every pass")
            return False, max(int(_BATCH_BYTES // kept), 1)
        refuse_beyond_memory(2 * drawn.block_bytes + rest, what, "a smaller dim")
        return True, 1

    def _plan(self, theory: SequenceIndexTheory, runs: PointRuns, say: Say) -> list[Stage]:
        """Return the plan of the runs at a point."""
        way = _Way(self._start(theory) == "staged", self.variances, self.iterations, self.damping)
        return planned(theory, runs.samples, runs.dim, way, say)


def _seconds_per_posterior(channel: Channel, samples: int) -> float:
    """Return the seconds per sample of a posterior at overlap 1/2; the first call, which compiles, is not timed."""
    P, M = channel.indices, channel.tokens
    most = _TIMED_SLOW if channel.cost > 1 else _TIMED
    rng = np.random.default_rng(streams.PLAN_NODES)
    Z, more = rng.normal(size=(2, min(samples, most), P, M))
    observation = channel.observe(Z, rng.normal(size=(len(Z), channel.noises)))
    for _ in range(2):
        begun = perf_counter()
        posterior_in_runs(channel, observation, 0.5 * (Z + more), 0.5 * np.eye(P))
        took = perf_counter() - begun
    return took / len(Z)


class _Way(NamedTuple):
    """Options of :class:`GAMP` on which the plan of a run depends; ``staged``: directions enter one after another."""

    staged: bool
    variances: str
    iterations: int
    damping: float


#: Plans by problem, alpha, number of nodes and options, the least recently used first; and how many plans are kept.
_PLANS: OrderedDict[tuple[BayesProblem, float, int, _Way], list[Stage]] = OrderedDict()
_MOST_PLANS = 256
_PLANS_LOCK = threading.Lock()


def planned(theory: SequenceIndexTheory, samples: int, dim: int, way: _Way, say: Say) -> list[Stage]:
    """Return the plan (list of stages) of runs with these samples and dim; it is kept per problem, alpha and options.

    ``say`` receives progress messages while a plan is made.
    """
    count = _plan_count(theory, samples)
    key = (theory.problem, samples / dim, count, way)
    with _PLANS_LOCK:
        if key in _PLANS:
            _PLANS.move_to_end(key)
            return _PLANS[key]
    stages = _made_plan(theory, samples / dim, count, way, say)
    with _PLANS_LOCK:
        _PLANS[key] = stages
        while len(_PLANS) > _MOST_PLANS:
            _PLANS.popitem(last=False)
    return stages


def _made_plan(theory: SequenceIndexTheory, alpha: float, count: int, way: _Way, say: Say) -> list[Stage]:
    options = {"iterations": way.iterations, "damping": way.damping}
    if way.staged:
        return learning_stages(_plan_nodes(theory, count), alpha, say=say, **options)
    if way.variances == "state_evolution":
        averages = _plan_nodes(theory, count).averages
        return [joint_stage(theory.state_evolution, averages, alpha, say=say, **options)]
    return [Stage.unplanned(theory.channel.indices, way.iterations)]


def _plan_count(theory: SequenceIndexTheory, samples: int) -> int:
    """Return the number of nodes of averages for the plan of runs with this number of samples."""
    most = _PLAN_NODES[not on_cpu()]
    least = most // 2 if on_cpu() and theory.channel.diagonal else most
    least = min(theory.state_evolution.nodes.affordable(most), least)
    return max(least, min(most, 1 << (samples - 1).bit_length()))


@lru_cache(maxsize=1)
def _plan_nodes(theory: SequenceIndexTheory, count: int) -> PlanNodes:
    """Return the nodes for plans, the same for every alpha."""
    return PlanNodes(theory.state_evolution, count)


def sequence_theory_of(
    problem: Problem, accepted: str = "message passing runs on BayesOptimal(...) of sequence multi-index models"
) -> SequenceIndexTheory:
    """Return the theory of a Bayes-optimal problem; otherwise raise a TypeError that names ``accepted`` problems."""
    theory = getattr(problem, "theory", None)
    if not isinstance(theory, SequenceIndexTheory):
        raise TypeError(f"{accepted}, got {type(problem).__name__}")
    return theory
