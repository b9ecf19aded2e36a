"""All thresholds of a model, as the user's function ``thresholds`` reports them.

Equation si-second of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....core.problem import Outcome, index_name
from ....core.progress import Progress, Say, under
from ....core.status import Status
from ..choose_nodes import nodes_for_thresholds
from ..fixed_points import StateEvolution
from .exact_recovery import exact_recovery
from .separate import FoundThresholds, joined
from .staircase import first_step, staircase, visible_rows
from .threshold import NEVER, StaircaseStep, Threshold

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Statuses by severity. A result with several thresholds has the first of these that occurs.
_BY_WEIGHT = (Status.NOT_CONVERGED, Status.AT_BOUND, Status.INACCURATE)
#: Names of the thresholds that can be requested, values of ``which``.
THRESHOLDS = ("weak_recovery", "staircase", "exact_recovery", "exact_recovery_informed")


class Part(NamedTuple):
    """Index rows that are learned independently of the others, and their state evolution."""

    rows: Sequence[int]
    evolution: StateEvolution


def find_thresholds(
    evolution: StateEvolution,
    *,
    tolerance: float,
    progress: Progress,
    labels: Sequence[str] = (),
    which: Sequence[str] | None = None,
) -> Outcome:
    """Return the thresholds of a channel: all ``THRESHOLDS``, or only those in ``which``.

    ``tolerance`` is the relative error of a threshold; ``labels`` are names of the indices for status texts.
    """
    asked = THRESHOLDS if which is None else which
    return _outcome(_searched(evolution, asked, tolerance, progress.message), asked, labels)


def find_thresholds_of_parts(
    parts: Sequence[Part], count: int, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None
) -> Outcome:
    """Return the thresholds of ``count`` index rows, whose ``parts`` are learned independently of each other.

    ``which`` are the requested names in ``THRESHOLDS`` (None: all), ``tolerance`` their relative error.
    """
    asked = THRESHOLDS if which is None else which
    found: dict[StateEvolution, FoundThresholds] = {}
    for rows, evolution in parts:
        if evolution not in found:
            say = under(f"{', '.join(index_name((), row) for row in rows)} alone", progress.message)
            found[evolution] = _searched(evolution, asked, tolerance, say)
    everything = joined([part.rows for part in parts], [found[part.evolution] for part in parts], count)
    return _outcome(everything, asked, ())


def _searched(evolution: StateEvolution, asked: Sequence[str], tolerance: float, say: Say) -> FoundThresholds:
    """Return the thresholds named in ``asked`` (see ``THRESHOLDS``), to a relative ``tolerance``."""
    nodes = nodes_for_thresholds(evolution.nodes)
    if nodes is not evolution.nodes:
        copies = evolution.copies
        evolution = StateEvolution(nodes.channel, evolution.side_information, held=evolution.held, nodes=nodes)
        evolution.copies = copies
    rows_only = "staircase" not in asked
    steps, branch = (
        ([], None)
        if rows_only and "weak_recovery" not in asked
        else staircase(evolution, tolerance=tolerance, rows_only=rows_only, say=say)
    )
    weak = [_weak_recovery(evolution, steps, index) for index in range(evolution.channel.indices)] if steps else []
    exact = None
    if "exact_recovery" in asked:
        # Without the staircase, only its first step is computed: if nothing is ever learned, nothing is recovered.
        last = steps[-1].threshold if steps else first_step(evolution, tolerance, say).threshold
        exact = exact_recovery(evolution, branch, last=last, tolerance=tolerance, say=say)
    found = FoundThresholds(steps, weak, exact, evolution.exact_recovery_bound)
    return found.per(evolution.copies)


def _outcome(everything: FoundThresholds, asked: Sequence[str], labels: Sequence[str]) -> Outcome:
    """Return the outcome for the user: values, errors and a common status of the thresholds named in ``asked``."""
    (steps, weak, exact, informed), found, words = everything, {}, ""
    values: dict[str, ArrayLike] = {"exact_recovery_informed": informed, "exact_recovery_informed_err": 0.0}
    if steps:
        names = [index_name(labels, index) for index in range(len(weak))]
        found |= {f"weak recovery of {name}": one for name, one in zip(names, weak, strict=True)}
        if "staircase" in asked:  # later steps may not be the first step of any index
            later = [(number, step.threshold) for number, step in enumerate(steps, 1) if step.threshold not in weak]
            found |= {f"step {number} of the staircase": one for number, one in later}
        values |= _with_errors("weak_recovery", weak) | _with_errors("staircase", [step.threshold for step in steps])
        values["direction"] = [step.direction for step in steps]
        if never := [name for name, one in zip(names, weak, strict=True) if not np.isfinite(one.alpha)]:
            words = f"{Status.CONVERGED.sentence}; never learned: {', '.join(never)}"
    if exact is not None:
        found["exact recovery"] = exact
        values |= {"exact_recovery": exact.alpha, "exact_recovery_err": exact.error}
        values["exact_recovery_gap"] = float(exact.alpha - 3 * np.nan_to_num(exact.error) > informed)
    how, doubts = _worst(found)
    return Outcome(values, how, words=doubts or words).only(_belonging_to(asked))


def _with_errors(name: str, thresholds: Sequence[Threshold]) -> dict[str, list[float]]:
    return {name: [one.alpha for one in thresholds], f"{name}_err": [one.error for one in thresholds]}


def _belonging_to(asked: Sequence[str]) -> list[str]:
    """Return the names of all values of the outcome that belong to the thresholds named in ``asked``."""
    more = {"staircase": ["direction"], "exact_recovery": ["exact_recovery_informed", "exact_recovery_gap"]}
    return [name for one in asked for name in (one, *more.get(one, []))]


def _weak_recovery(evolution: StateEvolution, steps: Sequence[StaircaseStep], index: int) -> Threshold:
    """Return the threshold of the first of the staircase's ``steps`` in which an index is learned.

    An index that no step learns gets the threshold of the last step, or NEVER if the output does not depend on it.
    """
    learned = [step.threshold for step in steps if step.involves(index)]
    if learned:
        return learned[0]
    return steps[-1].threshold if index in visible_rows(evolution) else NEVER


def _worst(thresholds: Mapping[str, Threshold]) -> tuple[Status, str]:
    """Return the most severe status of named thresholds, and the status texts of all that have not converged."""
    found = {threshold.how for threshold in thresholds.values()}
    how = next((status for status in _BY_WEIGHT if status in found), Status.CONVERGED)
    words = [f"{name}: {one.words}" for name, one in thresholds.items() if one.how is not Status.CONVERGED]
    return how, "; ".join(words)
