"""Derivatives and optima: arguments, statuses, interrupts, on a problem whose derivatives are known."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.gradient import Derivative
from asymptotix.core.problem import Outcome
from asymptotix.core.status import Status
from asymptotix.numerics import interrupts


@dataclass(frozen=True)
class Bowl(asx.Problem):
    """test_error = log(depth / centre)^2 + alpha, with a status of its own."""

    controls: ClassVar[tuple[str, ...]] = ("alpha",)
    depth: float = 1.0
    centre: float = 0.5
    doubtful: bool = False

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, Outcome]]:
        yield from ()

    def gradient(self, observable: str, field: str, *, alpha: float, tolerance: float) -> tuple:
        x = np.log(self.depth / self.centre)
        found = (float(x**2 + alpha), float(2 * x / self.depth))
        return (*found, Status.NOT_VALID, "replica symmetry is unstable") if self.doubtful else found


@dataclass(frozen=True)
class WithErrors(Bowl):
    """A bowl whose derivatives say how well they are known."""

    def gradient(self, observable: str, field: str, *, alpha: float, tolerance: float) -> Derivative:  # type: ignore[override]
        value, derivative = super().gradient(observable, field, alpha=alpha, tolerance=tolerance)
        return Derivative(value, derivative, value_error=1e-4, derivative_error=1e-3)


def gradient(problem: Any = Bowl(2.0), observable: Any = "test_error", field: Any = "depth", **options: Any):  # noqa: B008
    given: dict[str, Any] = {"alpha": 1.0} | options
    return asx.gradient(problem, observable, field, **given)


def optimum(problem: Any = Bowl(), **options: Any):  # noqa: B008
    return asx.optimum(problem, "test_error", "depth", **({"bounds": (0.01, 10.0), "alpha": 1.0} | options))


def test_a_derivative_of_two_numbers_is_one_that_converged():
    found = gradient()
    assert found == Derivative(np.log(4) ** 2 + 1, np.log(4))
    assert (found.status, found.words) == (Status.CONVERGED, "")


def test_where_the_theory_does_not_apply_no_bare_number_is_given():
    with pytest.warns(asx.ConvergenceWarning, match="not to be trusted: replica symmetry is unstable"):
        found = gradient(Bowl(2.0, doubtful=True))
    assert found.status is Status.NOT_VALID
    with pytest.warns(asx.ConvergenceWarning, match="not to be trusted: replica symmetry is unstable"):
        best = optimum(Bowl(doubtful=True))
    assert best.status is Status.NOT_VALID
    assert best.at == pytest.approx(0.5, rel=1e-3)


def test_an_optimum_inside_and_at_the_bounds():
    found = optimum(tolerance=1e-6)
    assert found.inside
    assert found.status is Status.CONVERGED
    assert found.at == pytest.approx(0.5, rel=1e-6)
    for bounds, at, words in (((1.0, 10.0), 1.0, "lower bound 1 is"), ((0.01, 0.1), 0.1, "upper bound 0.1 is")):
        with pytest.warns(asx.ConvergenceWarning, match=words):
            found = optimum(bounds=bounds)
        assert (found.at, found.inside, found.status) == (at, False, Status.AT_BOUND)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: gradient(None), "problem must be a Problem, got None"),
        (lambda: gradient(observable=3), "observable must be a name.*got 3"),
        (lambda: gradient(field=None), "field must be a name.*got None"),
        (lambda: gradient(alpha=[1.0, 2.0]), "alpha must be one number"),
        (lambda: gradient(alpha="much"), "alpha must be"),
        (lambda: gradient(alpha=np.inf), "alpha must be finite"),
        (lambda: gradient(beta=1.0), "give the controls alpha, got alpha, beta"),
        (lambda: gradient(tolerance=np.inf), "tolerance must be .*finite, got inf"),
        (lambda: gradient(tolerance=-1.0), "tolerance must be positive, got -1"),
        (lambda: optimum(bounds=None), "bounds must be a pair of positive numbers.*got None"),
        (lambda: optimum(bounds=(1.0,)), "bounds must be a pair"),
        (lambda: optimum(bounds="ab"), "bounds must be a pair"),
        (lambda: optimum(bounds=(2.0, 1.0)), "bounds must be ascending"),
        (lambda: optimum(bounds=(0.0, 1.0)), "bounds must be positive"),
        (lambda: optimum(bounds=(0.1, np.inf)), "bounds must be .*finite"),
        (lambda: optimum(tolerance=np.inf), "tolerance must be .*finite, got inf"),
        (lambda: optimum(tolerance=2.0), "tolerance must be below one"),
        (lambda: asx.optimum(Bowl(), "test_error", "width", bounds=(0.1, 1.0), alpha=1.0), "no field 'width'"),
        (lambda: asx.optimum(Bowl(), "test_error", "alpha", bounds=(0.1, 1.0), alpha=1.0), "field must be"),
    ],
)
def test_every_argument_is_checked(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wrong()


def test_an_interrupt_is_obeyed_between_two_evaluations(monkeypatch):
    seen = []

    def evaluate(self, observable, field, **options):
        seen.append(self.depth)
        os.kill(os.getpid(), signal.SIGINT)
        return 1.0, 1.0

    monkeypatch.setattr(Bowl, "gradient", evaluate)
    with pytest.raises(KeyboardInterrupt):
        optimum()
    interrupts.forget()
    assert len(seen) == 1


def test_a_grid_of_controls_gives_arrays_of_the_same_optima():
    found = optimum(alpha=[1.0, 2.0, 4.0], tolerance=1e-6)
    for name in ("at", "value", "inside", "status", "words"):
        assert getattr(found, name).dims == ("alpha",)
        assert getattr(found, name).alpha.values.tolist() == [1.0, 2.0, 4.0]
    for alpha in (1.0, 2.0, 4.0):
        single = optimum(alpha=alpha, tolerance=1e-6)
        assert (found.at.sel(alpha=alpha), found.value.sel(alpha=alpha)) == (single.at, single.value)
        assert found.status.sel(alpha=alpha).item() is single.status
    at, value, inside = found
    assert inside.all()
    assert (value - found.value == 0).all()
    assert at.dtype == float


def test_doubtful_points_of_a_grid_are_counted():
    with pytest.warns(asx.ConvergenceWarning, match=r"at 2 of 2 points, first .*lower bound 1 is"):
        found = optimum(bounds=(1.0, 10.0), alpha=[1.0, 2.0])
    assert not found.inside.any()
    assert set(found.status.values) == {Status.AT_BOUND}
    with pytest.raises(ValueError, match=r"alpha must be a number or a non-empty 1-D sequence, got shape \(1, 2\)"):
        optimum(alpha=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="alpha must be a number or a non-empty"):
        optimum(alpha=[])


def test_an_interrupt_keeps_the_optima_that_are_found(monkeypatch):
    calls: list[float] = []

    def interrupted(self: Bowl, observable: str, field: str, *, alpha: float, tolerance: float) -> tuple:
        calls.append(alpha)
        if alpha == 2.0:
            raise KeyboardInterrupt
        x = np.log(self.depth / self.centre)
        return float(x**2), float(2 * x / self.depth)

    monkeypatch.setattr(Bowl, "gradient", interrupted)
    with pytest.warns(asx.ConvergenceWarning, match="at 2 of 3 points"):
        found = optimum(alpha=[1.0, 2.0, 4.0])
    assert found.at.values[0] == pytest.approx(0.5, rel=1e-3)
    assert np.isnan(found.at.values[1:]).all()
    assert found.status.values[2] is Status.NOT_REACHED
    assert 4.0 not in calls


def test_a_derivative_and_an_optimum_show_their_errors():
    found = asx.gradient(WithErrors(2.0), "test_error", "depth", alpha=1.0)
    assert (found.value_error, found.derivative_error) == (1e-4, 1e-3)
    assert "derivative_error=0.001" in repr(found)
    assert "status=CONVERGED" in repr(found)
    best = asx.optimum(WithErrors(), "test_error", "depth", bounds=(0.01, 10.0), alpha=1.0, tolerance=0.01)
    # the slope of log(x/c)^2 in the logarithm grows by two, and its error is 1e-3 x
    assert best.at_error == pytest.approx(0.5 * (0.5 * 5e-4 + 0.3 * 0.01), rel=0.2)
    assert best.value_error == 1e-4
    for name in ("at", "at_error", "value", "value_error", "status", "words"):
        assert f"{name}=" in repr(best)


def test_a_tolerance_that_errors_forbid_is_not_met():
    with pytest.warns(asx.ConvergenceWarning, match="beyond the tolerance of 0.01%"):
        best = asx.optimum(WithErrors(), "test_error", "depth", bounds=(0.01, 10.0), alpha=1.0, tolerance=1e-4)
    assert best.status is Status.INACCURATE
    assert abs(best.at - 0.5) <= best.at_error


def test_progress_of_an_optimum_names_where_it_looks(monkeypatch, capfd):
    from asymptotix.core import progress

    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    optimum(progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert any("depth = 0.01: looking" in line for line in lines)
