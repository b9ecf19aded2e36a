"""The table is complete, and what its descriptions refuse is named."""

import dataclasses
from types import SimpleNamespace

import pytest

import asymptotix as asx
from protocol.cases import CASES, EXPERIMENTS, WRONG, examples, public_specifications


def missing_from_the_table(module=asx) -> set[str]:
    """Public descriptions that no case has or that nothing wrong is tried on."""
    covered = examples()
    return {name for name, cls in public_specifications(module).items() if cls not in covered or cls not in WRONG}


def test_every_public_description_has_a_case():
    assert missing_from_the_table() == set()


def test_every_algorithm_is_run_and_every_problem_is_solved():
    assert {type(case.algorithm) for case in EXPERIMENTS.values()} == _public(asx.Algorithm)
    assert {type(case.problem) for case in CASES.values() if case.is_theory} == _public(asx.Problem)


def _public(kind: type) -> set[type]:
    return {cls for cls in public_specifications().values() if issubclass(cls, kind)}


@dataclasses.dataclass(frozen=True)
class ForgottenByTheTable(asx.Target):
    """A target that nobody has thought of in the table."""

    mean = mean_square = zero_mass = smallest = largest = 0.0  # type: ignore[assignment]

    def convolution(self, delta):
        raise NotImplementedError

    def _positive_quantiles(self, levels):
        raise NotImplementedError


def test_what_is_forgotten_is_found(monkeypatch):
    monkeypatch.setattr(asx, "ForgottenByTheTable", ForgottenByTheTable, raising=False)
    monkeypatch.setattr(asx, "__all__", [*asx.__all__, "ForgottenByTheTable"])
    assert missing_from_the_table() == {"ForgottenByTheTable"}


def test_abstract_classes_and_functions_need_no_case():
    module = SimpleNamespace(__all__=["Problem", "solve", "tasks"], Problem=asx.Problem, solve=asx.solve, tasks=3)
    assert public_specifications(module) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "name", "bad"),
    [
        pytest.param(cls, name, bad, id=f"{cls.__name__}-{name}-{number}")
        for cls, fields in WRONG.items()
        for name, values in fields.items()
        for number, bad in enumerate(values)
    ],
)
def test_wrong_field_is_named(cls, name, bad):
    with pytest.raises((TypeError, ValueError)) as caught:
        dataclasses.replace(examples()[cls], **{name: bad})  # type: ignore[type-var]
    assert name in str(caught.value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_algorithm_refuses_a_problem_that_is_not_its_own(name):
    own = EXPERIMENTS[name]
    assert own.algorithm is not None
    others = [case for case in CASES.values() if type(case.problem) is not type(own.problem)]
    strange = next(case for case in others if "alpha" in case.controls or not own.algorithm.needs_dim)
    if name == "MatrixAMP":
        strange = CASES["one layer"]
    with pytest.raises(TypeError, match=f"{type(own.algorithm).__name__} runs on"):
        dataclasses.replace(own, problem=strange.problem, controls=strange.controls).run()
