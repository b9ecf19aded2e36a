"""Random calls of the public names, each judged: refused with a sentence, accepted with a finite answer, or a fault.

``python tests/fuzz/fuzzer.py --count 10000 --seed 1`` prints the faults and a table by stage; ``--only K`` repeats call
K and shows its traceback.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import asymptotix as asx
from fuzz.stages import STAGES, Call
from fuzz.values import shown

SECONDS_OF_A_HANG = 30
PACKAGE = str(Path(asx.__file__).parent)
#: What a call may raise. Anything else, and any of them from inside another library, is a raw traceback.
SENTENCES = (
    TypeError, ValueError, NotImplementedError, MemoryError, OSError, KeyError, AttributeError, ImportError,
    ArithmeticError,
)  # fmt: skip
#: Observables that are not numbers at every converged point, and why.
MAY_LACK = {
    "free_entropy": "+inf where recovery is exact",
    "eigenvalue": "of the spectral start, where there is one",
    "eigenvalue_gap": "of the spectral start, where there is one",
    "spectral_overlap": "of the spectral start, where there is one",
    "jump_weight": "nan where the learned law has no jump",
    "r_hat": "of few draws",
    "first_passage": "where the level was not passed",
    "Sigma": "+inf in the limit of vanishing weight decay below interpolation",
    "qhat": "+inf where recovery is exact",
    "delta": "where nothing is learned",
    "eps": "where nothing is learned",
    "scale": "where nothing is learned",
}


class Hang(BaseException):
    """A call that took too long; no Exception, so that nothing swallows it."""


@dataclass(frozen=True)
class Verdict:
    """What came of a call."""

    number: int
    stage: str
    text: str
    outcome: str  # "refused", "accepted", or a fault: "raw traceback", "hang", "not finite"
    detail: str
    seconds: float

    @property
    def fault(self) -> bool:
        return self.outcome not in ("refused", "accepted")

    def __str__(self) -> str:
        return f"#{self.number} {self.stage}: {self.outcome} after {self.seconds:.1f} s: {self.text}\n    {self.detail}"


def draw(seed: int, number: int) -> tuple[str, Call]:
    """The call with this number: it does not depend on those before it."""
    rng = np.random.default_rng([seed, number])
    names = list(STAGES)
    stage = names[rng.choice(len(names), p=[STAGES[name][0] for name in names])]
    return stage, STAGES[stage][1](rng)


def judge(seed: int, number: int, *, debug: bool = False) -> Verdict:
    """Make a call and judge what comes of it."""
    stage, call = draw(seed, number)
    began = time.monotonic()
    outcome, detail = _try(call, debug)
    return Verdict(number, stage, call.text, outcome, detail, time.monotonic() - began)


def _try(call: Call, debug: bool) -> tuple[str, str]:
    began = time.process_time()

    def hang(number: int, frame: FrameType | None) -> None:
        """On a busy machine a call that was given little of it has more time."""
        if time.process_time() - began > SECONDS_OF_A_HANG:
            raise Hang

    previous = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_OF_A_HANG, 5)
    faulthandler.dump_traceback_later(4 * SECONDS_OF_A_HANG, exit=True)  # stuck where no signal is seen
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call.do()
            signal.setitimer(signal.ITIMER_REAL, 0)
            lacking = "; ".join(_not_finite(answer))
        return ("not finite", lacking) if lacking else ("accepted", shown(answer))
    except Hang:
        return "hang", traceback.format_exc(limit=-4)
    except SENTENCES as error:
        if debug:
            traceback.print_exc()
        return ("refused" if _is_a_sentence(error) else "raw traceback"), _told(error)
    except Exception as error:
        if debug:
            traceback.print_exc()
        return "raw traceback", _told(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


def _is_a_sentence(error: Exception) -> bool:
    """Whether an error has words and is raised by the package, or by Python for a signature that does not fit."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    ours = frames[-1].filename.startswith(PACKAGE) or not inside or "<string>" in frames[-1].filename
    return ours and len(str(error)) > 10


def _told(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} [{Path(last.filename).name}:{last.lineno}]"


def _not_finite(answer: Any) -> Iterable[str]:
    """Names of numbers that a converged answer lacks."""
    if isinstance(answer, asx.Result):
        converged = answer.ds["converged"]
        for name, values in answer.ds.data_vars.items():
            own = str(name).removesuffix("_err").removesuffix("_trace")
            padded = answer.kind == "experiment" and "iteration" in values.dims
            if values.dtype.kind != "f" or own in MAY_LACK or padded:
                continue
            lacking = values.isnull() if answer.kind == "thresholds" else ~np.isfinite(values)
            if bool((lacking & converged).any()):
                yield f"{name} is {values.where(lacking & converged).values.ravel()[:3]} where converged"
    elif isinstance(answer, tuple) and (names := getattr(answer, "_fields", ())):
        numbers = {n: v for n, v in zip(names, answer, strict=True) if isinstance(v, float)}
        status = getattr(answer, "status", asx.Status.CONVERGED)
        yield from (f"{n} is {v}" for n, v in numbers.items() if not np.isfinite(v) and status.converged)


def campaign(count: int, seed: int, report: Callable[[Verdict], None], first: int = 0) -> list[Verdict]:
    """``count`` calls; ``report`` sees every fault as it happens."""
    verdicts = []
    for number in range(first, first + count):
        verdict = judge(seed, number)
        verdicts.append(verdict)
        if verdict.fault:
            report(verdict)
    return verdicts


def table(verdicts: Iterable[Verdict]) -> str:
    """Counts by stage and outcome, and the slowest call of every stage."""
    outcomes = ("refused", "accepted", "raw traceback", "hang", "not finite")
    counts: dict[str, collections.Counter] = {stage: collections.Counter() for stage in STAGES}
    slowest = dict.fromkeys(STAGES, 0.0)
    for verdict in verdicts:
        counts[verdict.stage][verdict.outcome] += 1
        slowest[verdict.stage] = max(slowest[verdict.stage], verdict.seconds)
    rows = [("stage", *outcomes, "slowest, s")]
    rows += [(stage, *(str(count[o]) for o in outcomes), f"{slowest[stage]:.1f}") for stage, count in counts.items()]
    total = sum(counts.values(), collections.Counter())
    rows.append(("all", *(str(total[o]) for o in outcomes), f"{max(slowest.values()):.1f}"))
    return "\n".join("  ".join(cell.rjust(14) for cell in row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    if given.only is not None:
        print(judge(given.seed, given.only, debug=True))
        return
    print(table(campaign(given.count, given.seed, lambda verdict: print(verdict, flush=True), given.first)))


if __name__ == "__main__":
    main()
