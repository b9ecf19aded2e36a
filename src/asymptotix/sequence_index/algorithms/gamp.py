"""Generalised approximate message passing: the algorithm that state evolution describes, at finite size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ...core.problem import Algorithm, Outcome, Problem, index_name
from ...numerics import checks
from ...numerics.memory import physical_memory, refuse_beyond_memory
from ..channels.protocol import Channel
from ..evolution.averages import averager
from ..theory import SequenceIndexTheory
from . import message_passing as mp
from .estimate_quality import estimation_error, fresh_errors, overlaps
from .schedule import SMALLEST_VARIANCE, Stage, joint_stage, learning_stages
from .spectral_start import spectral_start

STARTS = ("auto", "staged", "side_information", "random")
VARIANCES = ("state_evolution", "empirical")
#: Seeds are run together as long as their data stay below this many bytes.
_BATCH_BYTES = 2**31
#: Tokens are kept as long as they take less than this share of the memory.
_KEPT_SHARE = 0.5
#: Where alpha E|g|^2 of an index with variance below _TESTED exceeds theory by the factor _LAG and four standard
#: errors, a run goes on with variances from its own data, damped.
_LAG, _TESTED, _OWN_DAMPING = 1.25, 0.95, 0.8


@dataclass(frozen=True)
class GAMP(Algorithm):
    """Message passing for ``BayesOptimal`` problems with a channel.

    Parameters
    ----------
    start : "auto", "staged", "side_information" or "random"
        "staged": directions enter one after the other, each from the spectral estimate conditional on what is learned
        already. "side_information": all at once from the problem's side information. "random": all at once from
        W ~ start_scale N(0, 1), V = I. "auto" is side information where the problem has some, else staged.
    variances : "state_evolution" or "empirical"
        Prescribe A (in the variances and in the reaction terms) by state evolution, or measure it on the data as
        Algorithm 1 is printed. The other one is kept as a diagnostic.
    iterations : int
        Of the last stage, in which all directions are iterated; earlier ones end when state evolution is steady.
    damping : float
        Share of a new iterate in (0, 1]; 1 is undamped.
    jitter : float
        Added to V inside g_out.
    start_scale : float
        Of the random start.
    stream : bool, optional
        Draw the tokens anew in every pass instead of keeping them: the memory is then that of the samples' scores
        and of one block of tokens, and not proportional to N D. By default where keeping them would take more than
        half of the memory. The data are the same in either case.

    Notes
    -----
    From a small random start (``start_scale=0.1``) Algorithm 1 mostly fails to learn the first layer of a two-layer
    model: its variances leave the Nishimori line, and that mode outruns the growth of the overlap. Learning in stages
    with prescribed variances does not. The overlap that is reported is, where every row of the weights may change its
    sign on its own,

        overlap[i, j] = (w_i.w*_j)(w_i.w*_i) / (|w_i|^2 |w*_i| |w*_j|),

    which needs no choice of signs, tends to Q in the limit of large D, and whose diagonal is the squared cosine. For
    other models it is the part of the teacher's rows in the span of the estimate's, which tends to Q whatever the
    symmetry of the model (permutations, rotations of the rows of a layer) has done to the estimate.
    """

    start: str = "auto"
    variances: str = "state_evolution"
    iterations: int = 60
    damping: float = 1.0
    jitter: float = 0.0
    start_scale: float = 1.0
    stream: bool | None = None

    needs_dim: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.one_of("start", self.start, STARTS)
        checks.one_of("variances", self.variances, VARIANCES)
        object.__setattr__(self, "iterations", checks.integer("iterations", self.iterations, 1))
        damping = checks.positive("damping", self.damping)
        if damping > 1:
            raise ValueError(f"damping must be in (0, 1] (1 is undamped), got {damping}")
        checks.non_negative("jitter", self.jitter)
        checks.positive("start_scale", self.start_scale)
        if self.stream is not None and not isinstance(self.stream, bool):
            raise TypeError(f"stream must be True, False or None (automatic), got {self.stream!r}")
        if self.start == "random" and self.variances == "state_evolution":
            raise ValueError(
                "start='random' needs variances='empirical': state evolution knows no overlap to start from"
            )

    @classmethod
    def algorithm1(cls, iterations: int = 40) -> GAMP:
        """Algorithm 1 as published: random start, variances from the data, damping 0.8, V + 1e-3."""
        return cls(start="random", variances="empirical", iterations=iterations, damping=0.8, jitter=1e-3)

    def check(self, problem: Problem) -> None:
        """Refuse what is not a Bayes-optimal sequence-index problem, and a start it cannot have."""
        theory = getattr(problem, "theory", None)
        if not isinstance(theory, SequenceIndexTheory):
            accepted = "DeepAttention, InfiniteDepthAttention, SequenceIndex or MultiIndex"
            raise TypeError(f"GAMP runs on BayesOptimal(...) of {accepted}, got {type(problem).__name__}")
        side = theory.problem.side_information
        if self.start == "side_information" and side == 0:
            raise ValueError("start='side_information' needs a problem with side_information > 0, got 0")
        if self.start == "random" and side > 0:
            raise ValueError(f"start='random' is for problems without side information, got side_information={side}")
        if self.start == "staged" and side > 0:
            raise ValueError(f"start='staged' is for problems without side information, got side_information={side}")

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        per_index = ("iteration", "index")
        own = {"variance_trace": per_index, "empirical_variance_trace": per_index, "stage_trace": ("iteration",)}
        spectral = dict.fromkeys(("eigenvalue", "eigenvalue_gap", "spectral_overlap"), ("index",))
        return {**problem.dimensions(), **own, **spectral, "variance": ("index",), "empirical_variance": ("index",)}

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        if self._start_of(problem) != "side_information":
            raise ValueError(
                "state evolution follows message passing iteration by iteration from side information only; run "
                "BayesOptimal(model, side_information=0.05), say"
            )
        return {"iterations": self.iterations, "damping": self.damping}

    def _start_of(self, problem: Any) -> str:
        if self.start != "auto":
            return self.start
        return "side_information" if problem.side_information > 0 else "staged"

    def run_points(
        self,
        problem: Any,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Any,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Seeds of a point run together as far as memory allows."""
        assert dim is not None
        theory: SequenceIndexTheory = problem.theory
        for position, point in enumerate(points):
            alpha = float(point["alpha"])
            samples = max(round(alpha * dim), 1)
            stream, together = self._memory_plan(theory.channel, samples, dim)
            batches = [list(seeds[first : first + together]) for first in range(0, len(seeds), together)]

            def drawn(batch: Sequence[int], samples: int = samples, stream: bool = stream) -> _Run:
                data = mp.draw_data(theory.channel, samples, dim, batch, problem.side_information, stream=stream)
                run = _Run(self, problem, data, batch)
                mp.compile_ahead(run.data, run.state)
                return run

            with ThreadPoolExecutor(1) as pool:
                first_run = pool.submit(drawn, batches[0])  # draws and compiles while state evolution is computed
                progress.message(f"alpha = {alpha:.4g}: variances from state evolution")
                stages = self._stages(problem, samples / dim, samples)
                runs = chain([first_run.result()], map(drawn, batches[1:]))
                del first_run  # or it would keep the first data alive beside those of later batches
            for number, run in enumerate(runs):
                for k, outcome in enumerate(run(stages, progress, f"alpha = {alpha:.4g}")):
                    yield position, number * together + k, outcome

    def _memory_plan(self, channel: Channel, samples: int, dim: int) -> tuple[bool, int]:
        """Whether tokens are drawn anew in every pass, and how many seeds run together."""
        P, M = channel.indices, channel.tokens
        drawn = mp.drawn_tokens(channel, np.zeros(1), samples, dim)
        kept = 4 * samples * drawn.shape[2] * dim
        if jax.default_backend() != "cpu":
            kept *= 2  # a product is tuned on a copy of what it is applied to
        memory = physical_memory()
        stream = memory is not None and kept > _KEPT_SHARE * memory if self.stream is None else self.stream
        # Besides its tokens a run holds some ten arrays of the size of the scores, and covariances of a block.
        rest = 4 * (10 * samples * P * M + 10 * P * dim)
        what = f"one run (alpha={samples / dim:g}, dim={dim})"
        if not stream:
            refuse_beyond_memory(kept + rest, what, "stream=True, which draws tokens anew in every pass")
            return False, max(int(_BATCH_BYTES // kept), 1)
        refuse_beyond_memory(2 * drawn.block_bytes + rest, what, "a smaller dim")
        return True, 1

    def _stages(self, problem: Any, alpha: float, samples: int) -> list[Stage]:
        """The plan of runs that see so many samples each; it may cost as much as one of them does."""
        theory: SequenceIndexTheory = problem.theory
        channel, evolution = theory.channel, theory.state_evolution
        channel = channel.in_single_precision()
        most = 2**11 if jax.default_backend() == "cpu" else 2**13
        count = max(evolution.nodes.affordable(most), min(most, 1 << (samples - 1).bit_length()))
        # Directions that a symmetry makes equivalent are recognised by the scatter between randomisations.
        split = 1 if channel.diagonal else 8
        averages = averager(channel, max(count // split, 64), split, seed=5)
        start, options = self._start_of(problem), {"iterations": self.iterations, "damping": self.damping}
        if start == "staged":
            return learning_stages(evolution, averages, channel, alpha, **options)
        if self.variances == "state_evolution":
            return [joint_stage(evolution, averages, alpha, **options)]
        return [Stage.unplanned(channel.indices, self.iterations)]


class _Run:
    """One batch of seeds at one point."""

    def __init__(self, options: GAMP, problem: Any, data: mp.Data, seeds: Sequence[int]) -> None:
        self.options, self.data, self.seeds = options, data, seeds
        self.channel: Channel = problem.theory.channel
        self.labels = problem.index_labels()
        self.side, self.staged = problem.side_information, options._start_of(problem) == "staged"
        channel = self.channel
        S, samples, _, self.dim = data.tokens.shape
        P, dim = channel.indices, self.dim
        self.state = mp.State(
            W=jnp.zeros((S, P, dim), jnp.float32),
            g=jnp.zeros((S, samples, P, channel.tokens), jnp.float32),
            V=np.broadcast_to(np.eye(P), (S, P, P)).copy(),
            reaction=np.broadcast_to(np.eye(P), (S, P, P)).copy(),
        )
        self.traces: dict[str, list[np.ndarray]] = {name: [] for name in ("overlap", "variance", "empirical", "stage")}
        self.spectral = np.full((3, S, P), np.nan)
        self.lost = np.zeros(S, int)
        self.on_their_own = np.full(S, options.variances == "empirical")

    def __call__(self, stages: Sequence[Stage], progress: Any, label: str) -> list[Outcome]:
        if not self.staged:
            self._start_jointly()
        total = sum(stage.iterations for stage in stages)
        done = 0
        for number, stage in enumerate(stages):
            if stage.frame.shape[1] > 0:
                self._enter(stage)
            for t in range(stage.iterations):
                self._iterate(stage, t, number)
                done += 1
                progress.message(f"{label}: iteration {done} of {total}")
        return [self._outcome(k, stages) for k in range(len(self.seeds))]

    def _start_jointly(self) -> None:
        if self.side > 0:  # the start is that of the side information: a random one is refused
            self.state.W = np.float32(np.sqrt(self.side)) * self.data.side
            self.state.V = (1 - self.side) * self.state.V
            return
        draws = [np.random.default_rng([seed, self.dim, 1]).normal(size=self.state.W.shape[1:]) for seed in self.seeds]
        self.state.W = jnp.asarray(self.options.start_scale * np.array(draws), jnp.float32)

    def _enter(self, stage: Stage) -> None:
        """Start what enters at its spectral estimate, scaled to the overlap that theory gives it."""
        frame, entering = stage.frame, stage.frame @ stage.frame.T
        covariance = mp.covariance_along(self.channel, self.data, self.state, frame, stage.active - entering)
        start = stage.start
        gaps = np.full((2, len(self.seeds)), np.nan)
        for k, seed in enumerate(self.seeds):
            found = spectral_start(self.data.tokens.of_seed(k), covariance[k], seed, frame, start)
            self.state.W = _added(self.state.W, np.float32(frame @ start.calibration @ found.vectors), np.int32(k))
            scores = np.einsum("pi,nim->npm", frame, found.scores)
            self.state.g = _added(self.state.g, np.float32(scores), np.int32(k))
            gaps[:, k] = found.eigenvalue, found.gap
        # What was not active had variance one and no reaction but that of the prior.
        change = start.calibration @ start.reaction - np.eye(frame.shape[1])
        self.state.reaction = self.state.reaction + frame @ change @ frame.T
        self.state.V = self.state.V - frame @ start.overlap @ frame.T
        cosines = np.einsum("spp->sp", overlaps(self.state.W, self.data.teacher, self.channel))
        rows = stage.entering
        self.spectral[:2, :, rows] = gaps[:, :, None]
        self.spectral[2][:, rows] = cosines[:, rows]

    def _iterate(self, stage: Stage, t: int, number: int) -> None:
        own = self.on_their_own
        step = mp.iterate(
            self.channel, self.data, self.state,
            active=stage.active, precision=np.where(own[:, None, None], np.nan, stage.precision[t]),
            damping=np.where(own & self.staged, np.minimum(_OWN_DAMPING, self.options.damping), self.options.damping),
            side_information=self.side, jitter=self.options.jitter,
        )  # fmt: skip
        self._watch(stage, t, step.second_moment)
        self.lost = np.maximum(self.lost, step.lost)
        self.traces["overlap"].append(overlaps(self.state.W, self.data.teacher, self.channel))
        self.traces["variance"].append(np.einsum("spp->sp", self.state.V).copy())
        self.traces["empirical"].append(step.empirical_variance)
        self.traces["stage"].append(np.full(len(self.seeds), number))

    def _watch(self, stage: Stage, t: int, second_moment: np.ndarray) -> None:
        """Runs whose data contradict the prescribed variances go on with their own.

        If V is smaller than the true error, alpha E|g|^2 exceeds A = Qhat(V). Small systems lag behind state
        evolution now and then; to insist would drive them far off the Nishimori line.
        """
        if self.options.variances == "empirical" or not self.staged:
            return
        v = np.diag(stage.V[t])
        tested = (v < _TESTED) & (v > 10 * SMALLEST_VARIANCE)  # at the floor neither is state evolution's any more
        # |g|^2 scatters by about 1.6 times its mean from sample to sample.
        limit = _LAG + 4 * 1.6 / np.sqrt(self.data.samples)
        self.on_their_own |= (tested & (second_moment > limit * np.diag(stage.precision[t]))).any(1)

    def _outcome(self, k: int, stages: Sequence[Stage]) -> Outcome:
        trace = {name: np.array(rows)[:, k] for name, rows in self.traces.items()}
        W, teacher = (np.asarray(x[k], float) for x in (self.state.W, self.data.teacher))
        bayes, plugin = fresh_errors(self.channel, W, teacher, np.asarray(self.state.V[k], float))
        values = {
            "overlap": trace["overlap"][-1],
            "overlap_trace": trace["overlap"],
            "test_error": bayes,
            "plugin_error": plugin,
            "estimation_error": estimation_error(W, teacher, self.channel),
            "variance": trace["variance"][-1],
            "empirical_variance": trace["empirical"][-1],
            "variance_trace": trace["variance"],
            "empirical_variance_trace": trace["empirical"],
            "stage_trace": trace["stage"],
            "eigenvalue": self.spectral[0, k],
            "eigenvalue_gap": self.spectral[1, k],
            "spectral_overlap": self.spectral[2, k],
        }
        return Outcome(values, *self._verdict(k, stages, trace))

    def _verdict(self, k: int, stages: Sequence[Stage], trace: Mapping[str, np.ndarray]) -> tuple[str, bool]:
        if not np.isfinite(trace["overlap"]).all():
            return "failed: not finite", False
        if self.lost[k]:
            return f"finished, but the channel lost up to {self.lost[k]} samples in an iteration", False
        recent = trace["overlap"][-4:]
        moving = abs(np.diff(np.einsum("tpp->tp", recent), axis=0)).max() if len(recent) > 1 else np.inf
        if self.on_their_own[k] and self.options.variances == "state_evolution":
            note = "; its data contradicted the prescribed variances and it went on with their own"
        else:
            note = ""
        status = "converged" if moving < 1e-2 else f"finished, still moving by {moving:.1e} per iteration"
        for stage in stages:
            if not stage.entering.any():
                continue
            row = int(stage.entering.argmax())
            gap = self.spectral[1, k, row]
            if stage.growth > 1 and gap < 0.03:
                name = index_name(self.labels, row)
                status += f"; the spectral start of {name} is not detached from the bulk (gap {gap:.1%})"
        return status + note, True


@jax.jit
def _added(arrays: Any, part: Any, seed: Any) -> Any:
    return arrays.at[seed].add(part)
