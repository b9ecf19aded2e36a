"""Problems that hold different functions are different problems, whichever verb is given both."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from asymptotix.core.compare import compare
from asymptotix.core.verbs import simulate, solve
from toy import ToyLearning, ToyRegression, ToyRun


@dataclass(frozen=True)
class LinkedLearning(ToyLearning):
    """The toy with a function of the user's, by which it multiplies alpha."""

    link: Callable = np.abs

    def expected(self, alpha):
        return super().expected(self.link(alpha))

    def slower(self, alpha):
        return 0.5 * alpha


MODEL = ToyRegression()


def test_work_on_another_function_is_not_taken_over():
    before = solve(LinkedLearning(MODEL, link=lambda a: a), alpha=[0.25, 0.5], progress=False)
    with pytest.raises(ValueError, match="the same problem, got one that differs in link: another function"):
        solve(LinkedLearning(MODEL, link=lambda a: 0.5 * a), alpha=[0.25, 0.5], resume=before, progress=False)


def test_work_on_the_same_function_is():
    owner = LinkedLearning(MODEL)
    for name in ("link", "slower"):  # a bound method is another object every time it is asked for
        before = solve(LinkedLearning(MODEL, link=getattr(owner, name)), alpha=[0.25, 0.5], progress=False)
        now = LinkedLearning(MODEL, link=getattr(owner, name))
        assert solve(now, alpha=[0.25, 0.5], resume=before, progress=False).ds.identical(before.ds)


def test_theory_and_experiment_on_different_functions_are_not_compared():
    theory = solve(LinkedLearning(MODEL, link=np.abs), alpha=[0.25, 0.5], progress=False)
    runs = [
        simulate(LinkedLearning(MODEL, link=link), ToyRun(), alpha=[0.25, 0.5], dim=50, seeds=3, progress=False)
        for link in (np.abs, np.sqrt)
    ]
    compare(theory, runs[0])
    with pytest.raises(ValueError, match="of different problems: link is another function"):
        compare(theory, runs[1])
