"""A model and a theory from outside the package answer the same questions as those inside."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.specification import Specification
from protocol import questions
from protocol.cases import Case, sign
from third_party.own_model import LinearTeacher
from third_party.own_theory import NormalEquations, RidgeRegression

BAYES = asx.BayesOptimal(LinearTeacher(noise=0.5))
RIDGE = RidgeRegression(LinearTeacher(noise=0.5), weight_decay=0.1)
NOISE = {"noise": (0.5, 0.7)}
ALPHA = {"alpha": (0.5, 1.5)}
ERRORS = {"estimation_error": (), "test_error": ()}
OWN = {
    "own model": Case(
        BAYES, ALPHA, {**NOISE, "side_information": (0.0, 0.1)}, {"overlap": ("index", "index_other"), "test_error": ()}
    ),
    "own theory": Case(RIDGE, ALPHA, {**NOISE, "weight_decay": (0.1, 0.2)}, ERRORS),
    "own algorithm": Case(
        RIDGE, ALPHA, {**NOISE, "weight_decay": (0.1, 0.2)}, {**ERRORS, "weights": ("weight",)}, NormalEquations(), 20
    ),
    "own algorithm on the own model": Case(
        BAYES, ALPHA, NOISE, {"overlap": ("index", "index_other"), "test_error": ()}, NormalEquations(), 20
    ),
}
every = pytest.mark.parametrize("name", OWN)


@every
def test_result(name):
    questions.returns_what_it_promises(OWN[name])


@every
def test_file(name, tmp_path):
    questions.survives_a_file(OWN[name], tmp_path)


@every
def test_interrupt(name):
    questions.goes_on_after_an_interrupt(OWN[name])


@every
def test_batch(name):
    questions.does_not_depend_on_the_rest_of_the_call(OWN[name])


@every
def test_bad_controls(name):
    questions.refuses_bad_controls(OWN[name])


@every
def test_sweep(name):
    questions.can_be_swept(OWN[name])


@pytest.mark.parametrize(
    "problem", [pytest.param(BAYES, marks=pytest.mark.slow), RIDGE], ids=["own model", "own theory"]
)
def test_theory_is_compared_with_experiment(problem):
    theory = asx.solve(problem, alpha=[0.5, 1.5], progress=False)
    experiment = asx.simulate(problem, NormalEquations(), alpha=[1.5], dim=[100, 200], seeds=20, progress=False)
    compared = asx.compare(theory, experiment)
    assert "test_error" in compared.names
    # Twenty runs at each of two sizes; the bias of order 1/dim is below their standard error.
    assert compared.max_abs_z < 4
    assert "test_error" in compared.table()


def test_ridge_with_the_noise_as_weight_decay_is_bayes_optimal():
    ridge = asx.solve(RidgeRegression(LinearTeacher(0.5), weight_decay=0.5), alpha=[0.5, 1.5], progress=False)
    bayes = asx.solve(BAYES, alpha=[0.5, 1.5], progress=False)
    np.testing.assert_allclose(ridge.test_error, bayes.test_error, rtol=1e-12)


def test_thresholds_of_the_own_model(tmp_path):
    found = asx.thresholds(BAYES, noise=[0.1, 0.5], progress=False)
    assert found.weak_recovery.dims == ("noise", "index")
    assert found.index_label.values.tolist() == ["teacher"]
    assert (found.weak_recovery == 0).all()
    assert np.isinf(found.exact_recovery).all()
    found.save(tmp_path / "thresholds.nc")
    assert asx.load(tmp_path / "thresholds.nc").ds.identical(found.ds)


def test_what_the_own_theory_lacks_is_said():
    with pytest.raises(NotImplementedError, match="RidgeRegression has no thresholds"):
        asx.thresholds(RIDGE, progress=False)
    with pytest.raises(TypeError, match="GAMP runs on BayesOptimal"):
        asx.simulate(BAYES, asx.GAMP(), alpha=1.0, dim=10, seeds=1)
    with pytest.raises(TypeError, match="NormalEquations runs on problems of a LinearTeacher"):
        asx.simulate(asx.BayesOptimal(asx.DeepAttention(1, 2)), NormalEquations(), alpha=1.0, dim=10, seeds=1)


# -- a new model inside sequence_index: one new file, and one line in choose.py ------------------------------------


def channel_table() -> dict[type, Any]:
    """Model class -> function that returns its channel: the one place where a new model is entered."""
    from asymptotix.sequence_index.channels import choose

    for name in ("CHANNELS", "_CHANNELS"):
        if hasattr(choose, name):
            return getattr(choose, name)
    raise AssertionError("choose.py has no table from model class to channel")


@dataclass(frozen=True)
class Perceptron(Specification):
    """The new file: a description, y = sign(z) + sqrt(noise) N(0, 1), with the theory that it asks for."""

    noise: float = 0.0

    indices, tokens = 1, 1

    def bayes_optimal_theory(self) -> type:
        from asymptotix.sequence_index.theory import SequenceIndexTheory

        return SequenceIndexTheory


@pytest.mark.slow
def test_new_model_is_one_line_in_the_table(monkeypatch):
    table = channel_table()
    with pytest.raises(TypeError, match="Perceptron"):  # without the line it has no channel, and that is said
        asx.BayesOptimal(Perceptron())
    channel_of_link = table[asx.MultiIndex]

    def channel(model: Perceptron, *options: Any) -> Any:
        return channel_of_link(asx.MultiIndex(sign, indices=1, noise=model.noise), *options)

    monkeypatch.setitem(table, Perceptron, channel)
    known = asx.BayesOptimal(asx.MultiIndex(sign, indices=1))
    new = asx.solve(asx.BayesOptimal(Perceptron()), alpha=[0.5, 1.0], tolerance=5e-2, progress=False)
    old = asx.solve(known, alpha=[0.5, 1.0], tolerance=5e-2, progress=False)
    assert new.ok
    np.testing.assert_array_equal(new.status, old.status)
    for name in ("overlap", "test_error", "free_entropy"):
        np.testing.assert_allclose(new[name], old[name], rtol=1e-12)
