"""Theory of Bayes-optimal learning of sequence multi-index models, as solve, thresholds and simulate call it.

Equation si-estimation of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..core.dataset.rows import label_position
from ..core.definitions.observable import Observable
from ..core.problem import Outcome, index_name
from ..core.progress import Progress
from ..core.specification import Specification
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory
from .channels.choose import channel_of
from .evolution.coordinates import PRECISIONS
from .evolution.fixed_points import StateEvolution
from .evolution.refinement import OverlapSolution
from .evolution.thresholds.all_thresholds import THRESHOLDS, Part, find_thresholds, find_thresholds_of_parts
from .models.link import LinkModel
from .models.link_parts import doubt_of_unread_rows, link_parts, without_unread_rows
from .models.link_tokens import one_token
from .observables import PREDICTION_NODES, free_entropy, prediction_errors
from .overlap_definitions import OVERLAP_DEFINITIONS

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike

STARTS = ("uninformed", "informed")
#: Cache (id of a link, P, M) -> (the link, number of directions that its output depends on). The number takes seconds
#: to compute and does not depend on the noise, so that a sweep computes it once.
_SEEN: dict[tuple[int, int, int], tuple[object, int]] = {}


class BayesProblem(Protocol):
    """Properties of a Bayes-optimal problem that the theory reads."""

    @property
    def model(self) -> Specification: ...

    @property
    def side_information(self) -> float: ...


class SequenceIndexTheory:
    """State evolution, thresholds and observables of ``BayesOptimal(model)``, for any model with a channel."""

    def __init__(self, problem: BayesProblem) -> None:
        self.problem = problem
        self.channel = channel_of(problem.model)
        self.state_evolution = StateEvolution.of(self.channel, problem.side_information)

    @cached_property
    def _learned(self) -> Part:
        """Index rows on which the output depends, and the state evolution of the cheapest equivalent model.

        The alpha of that model is ``evolution.copies`` times the alpha of the problem.
        """
        return self._learned_with({})

    def _learned_with(self, fixed: Mapping[int, float]) -> Part:
        """Return the part of `_learned` with overlaps held fixed: ``fixed`` maps index rows (from 0) to overlaps."""
        model, side = self.problem.model, self.problem.side_information
        read = without_unread_rows(model) if isinstance(model, LinkModel) else None
        simplest = None if read is None else one_token(read.model)
        if read is None or (simplest is None and read.model is model) or fixed.keys() >= set(read.rows):
            evolution = StateEvolution.of(self.channel, side, fixed) if fixed else self.state_evolution
            return Part(range(self.channel.indices), evolution)
        channel = channel_of(read.model if simplest is None else simplest.model)
        held = {read.rows.index(row): overlap for row, overlap in fixed.items() if row in read.rows}
        evolution = StateEvolution.of(channel, side, held)
        evolution.copies = 1 if simplest is None else simplest.copies
        return Part(read.rows, evolution)

    @cached_property
    def _doubt(self) -> float:
        """Bound on the fraction of samples whose output depends on a row that was counted as unread."""
        return doubt_of_unread_rows(self.problem.model) if isinstance(self.problem.model, LinkModel) else 0.0

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "overlap": ("index", "index_other"),
            "weak_recovery": ("index",),
            "staircase": ("step",),
            "direction": ("step", "index", "index_other"),
        }

    def observables(self) -> Mapping[str, Observable]:
        return OVERLAP_DEFINITIONS

    def index_labels(self) -> Sequence[str]:
        return getattr(self.problem.model, "row_labels", ())

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return checks.positive_grid(name, values)

    def check_fixed(self, fixed: object) -> Mapping[int, float]:
        given = self.index_labels()
        return held_overlaps(fixed, [index_name(given, position) for position in range(self.channel.indices)])

    def solve_points(
        self,
        points: Sequence[Mapping[str, float]],
        *,
        start: object,
        tolerance: float,
        progress: Progress,
        fixed: Mapping[int, float] | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (position in ``points``, outcome) in order of increasing alpha; ``points`` are mappings with an alpha.

        ``start`` is "uninformed", "informed" or overlaps (P,) or (P, P); ``fixed`` maps index rows to held overlaps. An
        uninformed solution uses the last converged solution at smaller alpha as a hint.
        """
        start = self._check_start(start)
        self._refuse_large()
        rows, evolution = self._learned_with(fixed) if fixed else self._learned
        start = start if isinstance(start, str) else start[np.ix_(rows, rows)]
        alphas = np.array([point["alpha"] for point in points])
        hint: OverlapSolution | None = None
        for position in np.argsort(alphas, kind="stable"):
            progress.message(f"alpha = {alphas[position]:.4g}")
            alpha = evolution.copies * float(alphas[position])
            solution = _solved(evolution, alpha, start, tolerance, hint)
            # A solution at the edge of exact recovery is no start for the next point.
            hint = solution if solution.settled and not solution.marginal else hint
            yield int(position), self._outcome(evolution, alpha, self._of_all_rows(solution, rows, alpha, fixed or {}))

    def _refuse_large(self) -> None:
        """Raise MemoryError if the arrays of an average over data do not fit into memory."""
        channel = self.channel
        n, one = channel.indices * channel.tokens, np.zeros((1, channel.indices, channel.tokens))
        numbers = max(self.state_evolution.nodes.numbers, PREDICTION_NODES * 3 * (n + np.size(channel.output(one))))
        what = f"state evolution of {channel.indices} indices and {channel.tokens} tokens"
        refuse_beyond_memory(8 * numbers, what, "smaller sizes")

    def _check_start(self, start: object) -> str | np.ndarray:
        if isinstance(start, str):
            return checks.one_of("start", start, STARTS)
        P, diagonal = self.channel.indices, self.channel.diagonal
        Q = np.asarray(checks.real_array("start", start), float)
        Q = np.diag(Q) if Q.shape == (P,) else Q
        if Q.shape != (P, P) or not _is_overlap(Q) or (Q * (1 - self.channel.overlap_mask)).any():
            kind = "a diagonal matrix" if diagonal else "a symmetric matrix with eigenvalues in [0, 1)"
            raise ValueError(
                f"start must be one of {STARTS}, or the overlaps of the {P} indices in [0, 1) as a vector or {kind}, "
                f"got {start!r}"
            )
        return Q

    def _of_all_rows(
        self, solution: OverlapSolution, rows: Sequence[int], alpha: float, fixed: Mapping[int, float]
    ) -> OverlapSolution:
        """Return the ``solution`` of some ``rows`` (positions) extended to all P index rows.

        Every other row gets its overlap in ``fixed`` (row -> held overlap), or else that of the side information.
        """
        P, places = self.channel.indices, np.ix_(rows, rows)
        if len(rows) == P:
            return solution
        largest = 1 - 1 / PRECISIONS[1]
        Q = np.diag([min(fixed.get(row, self.problem.side_information), largest) for row in range(P)])
        # The output may show these rows in a fraction of the samples, bounded by _doubt.
        free = [row not in fixed for row in range(P)]
        V, error = np.eye(P) - Q, alpha * self._doubt * np.diag(free)
        Q[places], V[places], error[places] = solution.Q, solution.V, solution.Q_error
        return replace(solution, Q=Q, V=V, Q_error=error)

    def _outcome(self, evolution: StateEvolution, alpha: float, solution: OverlapSolution) -> Outcome:
        P = self.channel.indices
        if solution.exact or solution.averages is None:
            errors, entropy = (np.zeros(2), np.zeros(2)), (np.inf, 0.0)
        else:
            errors = prediction_errors(self.channel, solution.V, solution.Q_error)
            unseen = evolution.nodes.evidence_error(float(solution.averages.log_evidence.mean()))
            entropy = free_entropy(solution.V, alpha, solution.averages, self.problem.side_information, unseen)
        values = {
            "overlap": solution.Q,
            "overlap_err": solution.Q_error,
            "test_error": errors[0][0],
            "test_error_err": errors[1][0],
            "plugin_error": errors[0][1],
            "plugin_error_err": errors[1][1],
            "estimation_error": P - (solution.Q**2).sum(),
            "estimation_error_err": 2 * (abs(solution.Q) * solution.Q_error).sum(),
            "free_entropy": entropy[0],
            "free_entropy_err": entropy[1],
        }
        return Outcome(values, solution.how, words=solution.words)

    def threshold_names(self) -> Sequence[str]:
        return THRESHOLDS

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        if self.problem.side_information > 0:
            raise ValueError(
                f"thresholds are those without side information, got side_information={self.problem.side_information}"
            )
        self._refuse_large()
        parts, count = self.parts(), self.channel.indices
        if len(parts) > 1 or len(parts[0].rows) < count:
            return find_thresholds_of_parts(parts, count, tolerance=tolerance, progress=progress, which=which)
        return find_thresholds(
            parts[0].evolution, tolerance=tolerance, progress=progress, labels=self.index_labels(), which=which
        )

    def parts(self) -> list[Part]:
        """Return the parts of the model that are learned independently: each has its own index rows and outputs."""
        model = self.problem.model
        separate = link_parts(model) if isinstance(model, LinkModel) else []
        if len(separate) < 2:
            return [self._learned]
        # Parts with the same function share one state evolution.
        names = [np.asarray(part.model.function_sample("link")).tobytes() for part in separate]
        evolutions = {name: StateEvolution(channel_of(part.model)) for name, part in zip(names, separate, strict=True)}
        return [Part(part.rows, evolutions[name]) for name, part in zip(names, separate, strict=True)]

    def trace(self, *, iterations: int, damping: float, alpha: float) -> Mapping[str, np.ndarray]:
        """Return {"overlap": array (iterations, P, P)} after 1, 2, ... iterations from the side information's overlap.

        ``damping`` is the share of the new iterate: 1 is undamped.
        """
        (rows, evolution), P = self._learned, self.channel.indices
        overlaps = np.tile(self.problem.side_information * np.eye(P), (iterations, 1, 1))
        overlaps[:, *np.ix_(rows, rows)] = evolution.trace(evolution.copies * alpha, iterations, damping)[1:]
        return {"overlap": overlaps}

    def comparable(self, experiment: xr.Dataset) -> xr.Dataset:
        """Return the experiment with a random estimate's overlap removed from ``overlap`` and ``overlap_trace``.

        A random estimate has the diagonal overlap r/D, with r the number of estimated rows that can overlap with a
        row of the teacher.
        """
        experiment, rows = experiment.copy(), self._rows_seen_through()
        for name in ("overlap", "overlap_trace"):
            if name in experiment and "dim" in experiment.coords:
                bias = rows / experiment["dim"]
                diagonal = experiment["index"] == experiment["index_other"]
                experiment[name] = experiment[name] - bias * (1 - experiment[name]) / (1 - bias) * diagonal
        return experiment

    def _rows_seen_through(self) -> int:
        """Return the largest number of estimated rows that can overlap with one row of the teacher.

        These are the rows of the same block of the data, at most as many as the directions that the output shows.
        """
        rows, link = int(self.channel.overlap_mask.sum(0).max()), getattr(self.problem.model, "link", None)
        if rows == 1 or link is None:  # attention depends on all of its rows
            return rows
        key = (id(link), self.channel.indices, self.channel.tokens)
        if key not in _SEEN:
            _SEEN[key] = link, self.state_evolution.visible.shape[1]
        return min(rows, _SEEN[key][1])


def _solved(
    evolution: StateEvolution,
    alpha: float,
    start: str | np.ndarray,
    tolerance: float,
    hint: OverlapSolution | None,
) -> OverlapSolution:
    if isinstance(start, np.ndarray):
        return evolution.from_overlap(alpha, start, tolerance=tolerance)
    if start == "informed":
        return evolution.informed(alpha, tolerance=tolerance)
    return evolution.uninformed(alpha, tolerance=tolerance, hint=hint)


def held_overlaps(fixed: object, labels: Sequence[str]) -> dict[int, float]:
    """Return the user's mapping ``fixed`` (index -> overlap in [0, 1]) with positions from 0 as keys, ascending.

    A key of ``fixed`` is a position or one of the P ``labels``. ValueError if no index stays free.
    """
    if not isinstance(fixed, Mapping):
        such = f"{{{labels[0]!r}: 0.0}} or {{0: 0.0}}"
        raise TypeError(f"fixed must be a mapping from indices to overlaps, such as {such}, got {fixed!r}")
    held: dict[int, float] = {}
    for key, overlap in fixed.items():
        index = _held_index(key, labels)
        if index in held:
            raise ValueError(f"fixed must name every index once, got {fixed!r}")
        held[index] = float(checks.probability(f"fixed[{index}]", overlap, closed=True))
    if len(held) == len(labels):
        raise ValueError(f"fixed must leave at least one of the {len(labels)} indices free, got {fixed!r}")
    return dict(sorted(held.items()))


def _held_index(key: object, labels: Sequence[str]) -> int:
    """Return the position (from 0) that a key of ``fixed`` names: a number, a string of digits, or a label."""
    meant = label_position(key, labels) if isinstance(key, str) and not key.isdecimal() else key
    known = ", ".join(map(repr, labels))
    if meant is None:
        raise ValueError(
            f"every index of fixed must be a position, from 0 to {len(labels) - 1}, or one of the labels {known}, "
            f"got {key!r}"
        )
    name = f"every index of fixed that is not one of the labels {known}"
    return checks.integer(name, int(meant) if isinstance(meant, str) else meant, minimum=0, maximum=len(labels) - 1)


def _is_overlap(Q: np.ndarray) -> bool:
    """Return whether a matrix is symmetric with eigenvalues in [0, 1)."""
    if not np.isfinite(Q).all() or abs(Q - Q.T).max() > 1e-12:
        return False
    values = np.linalg.eigvalsh(Q)
    return bool(values[0] > -1e-12 and values[-1] < 1)
