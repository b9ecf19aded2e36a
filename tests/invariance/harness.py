"""Random pairs of equivalent problems: both are solved, and the answers must agree within their errors.

A case is a number: ``judge(7)`` draws the pair number 7 and gives a verdict, whatever was judged before. On the command
line, ``python -m invariance.harness --first 0 --count 1000`` does many (see :mod:`invariance.workers`), and
``python -m invariance.harness --only 7`` one, with its reproduction.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from invariance.grammar import HEADER
from invariance.questions import Answer, Pair, Question, ask
from invariance.transformations import SKIPPED, pair_of

EQUAL, REFUSED, NOT_CONVERGED, SLOW = "equal", "refused", "not converged", "slow"
WRONG, TRACEBACK = "WRONG", "TRACEBACK"
#: In the order of how bad they are.
VERDICTS = (EQUAL, NOT_CONVERGED, REFUSED, SLOW, WRONG, TRACEBACK)
FAULTS = (WRONG, TRACEBACK)

#: Combined errors within which two numbers are equal. Errors come from eight randomisations: 3.5 errors of a normal law
#: are as rare as 6 of Student's with seven degrees of freedom.
ERRORS = 6.0
#: Below this a different pair is asked again with a finer tolerance: of many thousand numbers a few differ by chance.
CERTAIN = 9.0
#: Tolerance of the second question over that of the first.
FINER = 0.3
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Verdict:
    """What came of a case: plain data, a line of JSON.

    Attributes
    ----------
    largest
        The largest difference of two numbers, in combined errors.
    lines
        The smallest reproduction, where there is a fault.
    """

    seed: int
    family: str
    transformation: str
    outcome: str
    detail: str = ""
    largest: float = 0.0
    again: bool = False
    seconds: float = 0.0
    cpu: float = 0.0
    lines: str = ""

    @property
    def fault(self) -> bool:
        return self.outcome in FAULTS

    def __str__(self) -> str:
        head = f"case {self.seed} ({self.family}: {self.transformation}): {self.outcome}, {self.cpu:.0f} s of CPU time"
        return f"{head}\n    {self.detail}\n{self.lines}"


@dataclass(frozen=True)
class Difference:
    """The worst difference of two answers."""

    errors: float = 0.0
    name: str = ""
    point: int = 0
    expected: Any = 0.0
    found: Any = 0.0

    def __str__(self) -> str:
        return f"{self.name} at point {self.point}: {self.expected} and {self.found}, {self.errors:.3g} errors apart"


def compared(expected: Answer, found: Answer, names: Sequence[str], slack: float) -> tuple[Difference, list[int]]:
    """The worst difference at points where both converged, and the points where one of the answers did not."""
    worst, left_out = Difference(), []
    for point in range(len(found.words)):
        if expected.words[point] == SKIPPED:
            continue
        if not (expected.converged[point] and found.converged[point]):
            left_out.append(point)
            continue
        for name in names:
            if name in expected.numbers and name in found.numbers:
                one, other = ((part[point] for part in answer.numbers[name]) for answer in (expected, found))
                worst = max(worst, _difference(name, point, tuple(one), tuple(other), slack), key=lambda d: d.errors)
    return worst, left_out


def _difference(name: str, point: int, one: Any, other: Any, slack: float) -> Difference:
    """In combined errors, to which the slack is added: relative, or absolute below one for what has no unit."""
    (x, dx), (y, dy) = (tuple(np.asarray(part, float) for part in pair) for pair in (one, other))
    if x.shape != y.shape:
        return Difference(np.inf, name, point, f"shape {x.shape}", f"shape {y.shape}")
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        floor = 1.0 if name == "overlap" or name in ("rank", "free_entropy") else abs(x).max(initial=0.0)
        dx, dy = (np.nan_to_num(d, posinf=np.inf) for d in (dx, dy))
        allowed = np.hypot(dx, dy) + slack * np.maximum(abs(x), floor) / ERRORS
        errors = np.where(same, 0.0, abs(x - y) / np.where(allowed > 0, allowed, np.finfo(float).tiny))
    errors = np.where(np.isnan(errors), np.inf, errors)  # a number and none
    at = np.unravel_index(int(errors.argmax()), errors.shape) if errors.ndim else ()
    return Difference(float(errors[at]), name, point, _shown(x, dx), _shown(y, dy))


def _shown(value: np.ndarray, error: np.ndarray) -> str:
    def text(v: Any, e: Any) -> str:
        return f"{v:.7g}±{e:.1e}"

    if value.ndim == 0:
        return text(value, error)
    return "[" + " ".join(text(v, e) for v, e in zip(value.ravel(), error.ravel(), strict=True)) + "]"


# -- the verdict of a pair -----------------------------------------------------------------------------------------


def judge_pair(pair: Pair, seed: int = -1) -> Verdict:
    """Ask both questions and compare; a doubtful difference is looked at with a finer tolerance, too."""
    began, cpu = time.monotonic(), time.process_time()
    verdict = _verdict(pair, seed)
    if verdict.outcome == WRONG and verdict.largest < CERTAIN:
        again = _verdict(pair, seed, tolerance=FINER * TOLERANCE)
        verdict = dataclasses.replace(again, again=True, detail=f"{again.detail} (first: {verdict.detail})")
    seconds, cpu = round(time.monotonic() - began, 2), round(time.process_time() - cpu, 2)
    return dataclasses.replace(verdict, seconds=seconds, cpu=cpu)


def _verdict(pair: Pair, seed: int, **more: Any) -> Verdict:
    def ended(outcome: str, detail: str, largest: float = 0.0, point: int | None = None) -> Verdict:
        lines = reproduction(pair, point) if outcome in FAULTS else ""
        return Verdict(seed, pair.family, pair.transformation, outcome, detail[:1500], largest, lines=lines)

    first = ask(pair.first, **more)
    second = ask(pair.second, **more)
    for which, answer in (("first", first), ("second", second)):
        if answer.error:
            return ended(TRACEBACK, f"{which}: {answer.error}")
    if first.refusal or second.refusal:
        both = "both" if first.refusal and second.refusal else "first" if first.refusal else "second"
        return ended(REFUSED, f"{both}: {first.refusal or second.refusal}")
    worst, left_out = compared(pair.carry(first), second, pair.names, pair.slack)
    if worst.errors > ERRORS:
        return ended(WRONG, str(worst), worst.errors, worst.point)
    if left_out:
        expected = pair.carry(first)
        point = left_out[0]
        said = expected.words[point] if not expected.converged[point] else second.words[point]
        return ended(NOT_CONVERGED, f"{len(left_out)} of {len(second.words)} points: {said}", worst.errors)
    return ended(EQUAL, "", worst.errors)


def judge(seed: int, small: bool = False) -> Verdict:
    """The verdict of the case with this number."""
    return judge_pair(pair_of(seed, small), seed)


def reproduction(pair: Pair, point: int | None = None) -> str:
    """Lines that run both problems, with only the point that differs where that is one of both."""
    first, second = pair.first, pair.second
    if point is not None and first.verb == "solve" and not _regridded(first, second):
        control = next(iter(first.options))
        if len(first.options[control]) == len(second.options.get(control, [])):
            first, second = (
                q.with_(options={**q.options, control: [q.options[control][point]]}) for q in (first, second)
            )
    shown = [*HEADER]
    for question in (first, second):
        shown += [*question.make, *question.before, question.call()]
        shown += ["numbers = {}", *question.after] if question.after else []
        shown.append(f"for name in {tuple(pair.names)}:")
        shown.append("    error = answer.ds.get(f'{name}_err', np.nan)")
        shown.append("    if name in answer.ds: print(name, answer[name].values, np.asarray(error))")
        shown += ["print(numbers)"] if question.after else []
        shown += ["print(answer.status.values)", *question.restore]
    return "\n".join(f"    {line}" for text in shown for line in text.split("\n"))


def _regridded(first: Question, second: Question) -> bool:
    return list(first.make) == list(second.make) and not second.before


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    from invariance import workers

    parser = argparse.ArgumentParser(prog="python -m invariance.harness", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=100, help="how many cases")
    parser.add_argument("--only", type=int, nargs="+", help="judge these cases here, and print all of them")
    parser.add_argument("--small", action="store_true", help="problems that are solved in seconds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of CPU time for a case")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no case is begun")
    parser.add_argument("--output", type=Path, default=None, help="file of JSON lines, appended to; resumed from")
    parser.add_argument("--table", action="store_true", help="print the table of the output file and end")
    given = parser.parse_args(arguments)
    if given.only is not None:
        for seed in given.only:
            pair = pair_of(seed, given.small)
            print(reproduction(pair), flush=True)
            print(judge_pair(pair, seed), flush=True)
        return
    if not given.table:
        workers.campaign(
            range(given.first, given.first + given.count), small=given.small, processes=given.processes,
            limit=given.limit, budget=given.budget, output=given.output, report=lambda v: print(v, flush=True),
        )  # fmt: skip
    if given.output is not None:
        print(workers.table(workers.read(given.output)))


if __name__ == "__main__":
    main()
