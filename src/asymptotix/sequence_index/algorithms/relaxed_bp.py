"""Relaxed belief propagation: one message per pair of a sample and a coordinate, and no reaction term.

Coordinate i sends sample mu its estimate without the contribution of mu; sample mu sends coordinate i its score without
the part of i in the fields:

    omega_{mu->i} = sum_{j != i} x_{mu j} w_{j->mu} / sqrt(D),    g_{mu->i} = g_out(y_mu, omega_{mu->i}, V),
    b_{i->mu} = sum_{nu != mu} x_{nu i} g_{nu->i} / sqrt(D),      w_{i->mu} = C (b_{i->mu} + sqrt(l)/(1-l) S_i).

This is Troiani et al., arXiv:2502.00901, eq. (76), with two changes. The covariance of the estimate replaces the
covariances of all messages (the difference is of order 1/sqrt(D)), and the side information S of eq. (104) enters
exactly.

For large D this becomes GAMP: each message of a sample is its omega minus a small difference, and the sums of these
differences are the reaction terms, - C g in omega and + A W in b. Reaction terms are not used here, so that the two
algorithms agree up to O(1/sqrt(D)) only if the reaction terms are right. The cost is N D posteriors per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core.problem import Outcome, Problem
from ...core.progress import Progress
from ...core.runs import AlgorithmOnSamples, PointRuns
from ...numerics import checks, interrupts
from ...numerics.memory import refuse_beyond_memory
from .. import streams
from ..channels.protocol import Channel
from ..evolution.averages import averager
from ..theory import SequenceIndexTheory
from .data_sets import DataSets, draw_data
from .estimate_quality import errors, overlaps, settled
from .gamp import VARIANCES, sequence_theory_of
from .message_passing import empirical_precision, weight_covariance
from .schedule import SMALLEST_VARIANCE, joint_stage

#: Largest dimension: there are N D messages of P M numbers, each with its own posterior.
LARGEST_DIM = 300
#: Number of posteriors computed at a time.
_BLOCK = 2**16


@dataclass(frozen=True)
class RelaxedBP(AlgorithmOnSamples):
    """Relaxed belief propagation from side information: a slow, independent check of :class:`GAMP`.

    Parameters
    ----------
    iterations : int
    variances : "state_evolution" or "empirical"
        As for GAMP: A is prescribed by state evolution, or measured on the data.
    tolerance : float
        As for GAMP: a run has converged if no diagonal overlap moved by more than this in one of its last four
        iterations, nor drifted by more than this over the last eight, beyond the noise of the drift.

    Notes
    -----
    A run has the same data as a GAMP run of equal seed, dim and alpha. The largest dim is 300.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2), side_information=0.1)
    >>> runs = asx.simulate(problem, asx.RelaxedBP(iterations=3), alpha=0.5, dim=30, seeds=1, progress=False)
    >>> runs.overlap.shape
    (1, 1, 1)
    """

    iterations: int = 10
    variances: str = "state_evolution"
    tolerance: float = 1e-2

    needs_dim: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", checks.integer("iterations", self.iterations, 1))
        checks.one_of("variances", self.variances, VARIANCES)
        object.__setattr__(self, "tolerance", checks.share("tolerance", self.tolerance))

    def check(self, problem: Problem) -> None:
        """Refuse other problems than Bayes-optimal sequence-index problems with side information."""
        theory = sequence_theory_of(problem, "RelaxedBP runs on BayesOptimal(DeepAttention(...))")
        if theory.channel.groups is not None:
            raise NotImplementedError(f"RelaxedBP does not cover several heads, got {theory.problem.model}")
        if theory.problem.side_information == 0:
            raise ValueError("RelaxedBP starts from side information, got side_information=0; it must be positive")

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        per_index = ("iteration", "index")
        return {**problem.dimensions(), "variance_trace": per_index, "variance": ("index",)}

    def trace_options(self, problem: Problem) -> Mapping[str, float]:
        return {"iterations": self.iterations, "damping": 1.0}

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Refuse dimension one, dimensions beyond the largest, and sizes that do not fit into memory."""
        channel, dim = sequence_theory_of(problem).channel, runs.dim
        if not 2 <= dim <= LARGEST_DIM:
            raise ValueError(f"dim must be from 2 to {LARGEST_DIM} for RelaxedBP (one message per edge), got {dim}")
        needed = 8 * 6 * runs.samples * dim * channel.indices * channel.tokens
        refuse_beyond_memory(needed, f"one run ({runs.label}, dim={dim})", "a smaller dim or alpha")

    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Run one seed after the other; yield (position of the seed, outcome)."""
        theory, dim = sequence_theory_of(problem), runs.dim
        channel, side = theory.channel, theory.problem.side_information
        precision = self._precision(theory, runs.samples / dim)
        for k, seed, label in runs.each():
            messages = Messages(channel, draw_data(channel, runs.samples, dim, [seed], side), side)
            yield k, _run(messages, precision, self.tolerance, progress, label)

    def _precision(self, theory: SequenceIndexTheory, alpha: float) -> list[np.ndarray | None]:
        """Return one prescribed A (P, P) per iteration, or None per iteration if A is measured on the data."""
        if self.variances == "empirical":
            return [None] * self.iterations
        averages = averager(theory.channel, theory.state_evolution.nodes.affordable(2**11), 1, seed=streams.PLAN_NODES)
        stage = joint_stage(theory.state_evolution, averages, alpha, iterations=self.iterations, damping=1.0)
        return list(stage.precision)


class Messages:
    """Messages of relaxed belief propagation on one data set of N samples.

    Attributes
    ----------
    w : array (N, P, D)
        Messages w_{i->mu}.
    W : array (P, D)
        Estimate from all samples.
    V : array (P, P)
        Covariance C of the estimate; each message has the same covariance up to O(1/sqrt(D)).
    """

    def __init__(self, channel: Channel, data: DataSets, side_information: float) -> None:
        self.channel, self.data, self.side_information = channel, data, side_information
        self.X = np.concatenate([np.asarray(X[0], float) for _, X in data.tokens.blocks()])  # (N, M, D)
        self.side = np.asarray(data.side[0], float)
        self.W = np.sqrt(side_information) * self.side
        self.w = np.broadcast_to(self.W, (len(self.X), *self.W.shape))
        self.V = (1 - side_information) * np.eye(channel.indices)

    def iterate(self, precision: np.ndarray | None) -> None:
        """Do one iteration, in place; A is ``precision`` or, if that is None, measured on the data."""
        root = np.sqrt(self.X.shape[2])
        parts = self.w[:, :, None] * self.X[:, None] / root  # (N, P, M, D), the part of every coordinate in the fields
        g, traced = self._scores(parts.sum(-1, keepdims=True) - parts)
        said = np.einsum("nmd,npmd->npd", self.X, g) / root
        b = said.sum(0)
        A = precision
        if A is None:
            data_precision = empirical_precision(self.data.alpha, self.V, traced, self.channel.tokens)
            A = data_precision * self.channel.overlap_mask
        C = weight_covariance(A, self.side_information)
        known = np.sqrt(self.side_information) / (1 - self.side_information) * self.side
        self.W = C @ (b + known)
        self.w = C @ (b - said + known)
        w, vectors = np.linalg.eigh(C)
        self.V = (vectors * w.clip(SMALLEST_VARIANCE)) @ vectors.T
        if not np.isfinite(self.w).all():
            raise FloatingPointError("the messages are not finite")

    def _scores(self, omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores g (N, P, M, D) at fields omega (N, P, M, D), and the mean of sum_m Cov_mm (P, P)."""
        N, P, M, D = omega.shape
        flat = np.moveaxis(omega, 3, 1).reshape(N * D, P, M)
        observation = np.asarray(self.data.observation[0])
        shift, traced = np.empty(flat.shape), np.zeros((P, P))
        for first in range(0, N * D, _BLOCK):
            interrupts.check()
            rows = slice(first, first + _BLOCK)
            samples = np.arange(N * D)[rows] // D
            found = self.channel.posterior(observation[samples], flat[rows], self.V)
            shift[rows] = np.asarray(found.shift)
            traced += np.einsum("npmqm->pq", np.asarray(found.covariance, float))
        lost = ~np.isfinite(shift).all((1, 2))
        if lost.any() or not np.isfinite(traced).all():
            raise FloatingPointError(f"the channel lost {max(lost.sum(), 1)} of {N * D} messages")
        g = np.einsum("pq,nqm->npm", np.linalg.inv(self.V), shift)
        return np.moveaxis(g.reshape(N, D, P, M), 1, 3), traced / (N * D)


def _run(
    messages: Messages, precision: Sequence[np.ndarray | None], tolerance: float, progress: Progress, label: str
) -> Outcome:
    teacher = np.asarray(messages.data.teacher, float)
    overlap, variance = [], []
    for t, A in enumerate(precision):
        messages.iterate(A)
        overlap.append(overlaps(messages.W[None], teacher, messages.channel)[0])
        variance.append(np.diag(messages.V))
        progress.message(f"{label}: iteration {t + 1} of {len(precision)}")
    values = {
        "overlap": overlap[-1],
        "overlap_trace": np.array(overlap),
        "variance": variance[-1],
        "variance_trace": np.array(variance),
        **errors(messages.channel, messages.W, teacher[0], messages.V),
    }
    status, words = settled(np.array(overlap), tolerance)
    return Outcome(values, status, words=words)
