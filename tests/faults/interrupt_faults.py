"""Signals at random moments of every problem and algorithm: nothing finished is lost, nothing crashes.

Run as a script for the long form: ``python tests/faults/interrupt_faults.py --count 100 --seed 0``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import asymptotix as asx
from asymptotix.core.driver.run import Interrupted
from asymptotix.numerics import interrupts
from protocol.cases import CASES, PATHS, Case

LAYERS = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2), side_information=0.05)
TRAINING = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01)
MANY = tuple(float(alpha) for alpha in np.geomspace(0.1, 10, 12))


def _longer(name: str, problem: asx.Problem | None = None, dim: int | None = None, **options) -> Case:
    """A case of the protocol that lasts seconds, so that a signal finds it at work."""
    case = CASES[name]
    algorithm = case.algorithm and type(case.algorithm)(**options.pop("algorithm", {}))
    return Case(problem or case.problem, options or case.controls, {}, {}, algorithm, dim)


#: What is interrupted: every theory and every algorithm, long enough to be met in the middle.
WORK: dict[str, Case] = {
    "two layers": Case(LAYERS, {"alpha": (0.3, 0.6)}, {}, {}, tolerance=2e-2),
    "infinite depth": _longer("infinite depth", alpha=(0.3, 0.4, 0.5, 0.6)),
    "link": _longer("sequence index", alpha=(0.5, 1.0, 1.5)),
    "sign": _longer("multi index", alpha=(0.5, 1.0, 1.5, 2.0)),
    "Bayes-optimal attention": _longer("Bayes-optimal attention", alpha=MANY),
    "training": Case(TRAINING, {"alpha": MANY}, {}, {}),
    "paths": _longer("paths", width=tuple(np.geomspace(3, 1000, 30))),
    "GAMP": _longer("GAMP", dim=300, alpha=(0.5, 0.8), algorithm={"iterations": 30}),
    "RelaxedBP": _longer("RelaxedBP", dim=60, alpha=(0.5, 0.8), algorithm={"iterations": 10}),
    "SGD": _longer("SGD", dim=200, alpha=(1.0, 2.0), algorithm={"epochs": 200}),
    "Adam": _longer("Adam", dim=30, alpha=(0.5, 1.0), algorithm={"steps": 1500}),
    "MatrixAMP": _longer("MatrixAMP", dim=40, alpha=(0.5, 1.0), algorithm={"iterations": 40}),
    "NUTS": _longer("NUTS", PATHS, width=(5.0, 10.0), algorithm={"draws": 200, "warmup": 100}),
}


@dataclass(frozen=True)
class Shot:
    """One or two signals during one piece of work, and what came of them."""

    name: str
    signals: tuple[int, ...]
    outcome: str
    finished: int
    seconds: float  # from the first signal to the return

    def __str__(self) -> str:
        sent = "+".join(signal.Signals(number).name for number in self.signals)
        return f"{self.name:24} {sent:16} {self.outcome:22} {self.finished:3} finished, back after {self.seconds:.2f} s"


class _Gun:
    """Sends signals to this process after a delay, and only while a verb is at work."""

    def __init__(self, signals: tuple[int, ...], delay: float, between: float) -> None:
        self.signals, self.delay, self.between = signals, delay, between
        self.fired = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._fire, daemon=True)

    def _fire(self) -> None:
        self.over.wait(self.delay)
        for number in self.signals:
            if self.over.is_set() or not interrupts._requests.depth:
                return
            self.fired = self.fired or time.monotonic()
            os.kill(os.getpid(), number)
            self.over.wait(self.between)


def shoot(name: str, signals: tuple[int, ...], delay: float, between: float, whole: asx.Result) -> Shot:
    """Run one piece of work under fire, check what it gives and that the rest can be done afterwards."""
    interrupts.forget()
    gun = _Gun(signals, delay, between)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gun.thread.start()
        try:
            part, outcome = WORK[name].run(), "result"
        except Interrupted as error:
            part, outcome = error.result, "raised, with result"
        back = time.monotonic()
        gun.over.set()
        gun.thread.join()
        interrupts.forget()
        if part.finished:
            outcome = "complete" if outcome == "result" else outcome
        _check_numbers(part, whole)
        _check_numbers(WORK[name].run(resume=part), whole, complete=True)
    finished = int((~part.status_code.isin(["not_reached", "interrupted"])).sum())
    return Shot(name, signals, outcome, finished, back - gun.fired if gun.fired else 0.0)


def _check_numbers(part: asx.Result, whole: asx.Result, *, complete: bool = False) -> None:
    """What is finished has the numbers of the uninterrupted work, within its errors."""
    done = ~part.status_code.isin(["not_reached", "interrupted"])
    assert part.finished or not complete, part.status.values
    for name, values in whole.ds.data_vars.items():
        if values.dtype.kind != "f" or str(name).endswith("_err") or name in ("cpu_seconds", "r_hat", "gradient_norm"):
            continue
        if name not in part.ds:
            assert not done.any(), f"{name} is lost"
            continue
        error = whole.ds.get(f"{name}_err", 0.0 * values).fillna(0.0)
        lengths = {dim: slice(part.ds.sizes[dim]) for dim in values.dims}
        expected, bound = values.isel(lengths), (error + 1e-6 * abs(values).max().fillna(0.0) + 1e-9).isel(lengths)
        gap = abs(part.ds[name] - expected).where(done & expected.notnull() & np.isfinite(expected), 0.0)
        assert bool((gap <= bound).all()), f"{name} differs by {float(gap.max()):.2g}"


def rehearse(name: str) -> tuple[asx.Result, float]:
    """The uninterrupted work, and how long it takes once its programs are compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = WORK[name].run()
        began = time.monotonic()
        WORK[name].run()
    return whole, time.monotonic() - began


def campaign(names: list[str], count: int, seed: int, report: Callable[[Shot], None]) -> list[Shot]:
    """``count`` shots spread over the work named, at random moments, with one and two signals."""
    rng = np.random.default_rng(seed)
    shots = []
    for k, name in enumerate(names):
        whole, seconds = rehearse(name)
        for _ in range(len(range(k, count, len(names)))):
            number = (signal.SIGINT, signal.SIGTERM)[rng.integers(2)]
            signals = (number,) * int(rng.integers(1, 3))
            shot = shoot(name, signals, rng.uniform(0, seconds), rng.exponential(0.1), whole)
            report(shot)
            shots.append(shot)
    return shots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORK)}; all if none")
    given = parser.parse_args()
    # In the background of a shell Ctrl-C is ignored, and what is ignored stays so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shots = campaign(given.names or list(WORK), given.count, given.seed, lambda shot: print(shot, flush=True))
    outcomes = {outcome: sum(shot.outcome == outcome for shot in shots) for outcome in {s.outcome for s in shots}}
    print(f"{len(shots)} shots: {outcomes}; slowest return {max(shot.seconds for shot in shots):.2f} s")


if __name__ == "__main__":
    main()
