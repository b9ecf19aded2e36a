"""Figures of training: thresholds by printed formulas, zeros of a spectrum, and the words of a record."""

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.figures import training, training_spectra
from asymptotix.figures import training_thresholds as printed
from asymptotix.figures.training_curves import Curve, plain, where_unproven


@pytest.fixture(scope="module")
def theory():
    problem = asx.RiskMinimization(asx.AttentionIndex(target=asx.MarchenkoPastur(0.5), noise=0.5), weight_decay=0.01)
    return asx.solve(problem, alpha=[4.0, 40.0], progress=False)


def test_thresholds_against_the_rank():
    made = training.fig3_right(points=5)
    found = made.datasets["thresholds"]
    np.testing.assert_allclose(found["full"], 0.25)
    np.testing.assert_allclose(found["bayes"].values[2], printed.bayes_recovery(float(found["rank"][2])))
    held = [claim.holds for claim in made.findings.claims]
    assert held == [False, True, True, True, True, True]  # the formulas hold, the number 1/2 does not
    assert made.findings.claims[0].script == "examples/errata/full_recovery.py"
    assert "yes" in made.findings.remarks[0]


@pytest.mark.parametrize("tokens", [2, 3])
def test_printed_formulas(tokens):
    known = asx.thresholds(asx.RiskMinimization(asx.AttentionIndex(tokens=tokens, noise=0.3)), progress=False)
    assert printed.interpolation(0.5, 0.3, tokens) == pytest.approx(float(known.interpolation), rel=1e-8)
    known = asx.thresholds(asx.RiskMinimization(asx.AttentionIndex(tokens=tokens, noise=0.0)), progress=False)
    assert printed.factorized_recovery(0.5, tokens) == pytest.approx(float(known.exact_recovery), rel=1e-10)


def test_zeros_are_counted_from_where_the_law_begins(theory):
    law = theory.sel(alpha=40.0).spectrum()
    edge = training_spectra.edge(law)
    assert 0 < edge < 0.1  # values between the two are not zeros, though small
    assert float(law.singular_value_cdf(edge)) == pytest.approx(law.atom + 0.005 * law.rank)
    assert training_spectra.right_bulk(law) == pytest.approx(0.5, abs=1e-10)
    assert np.isnan(training_spectra.right_bulk(theory.sel(alpha=4.0).spectrum()))
    found = training_spectra.measured({40.0: law}, {40.0: np.linspace(0, 1, 11)})
    assert float(found["zeros_adam"][0]) == pytest.approx(1 / 11)
    assert float(found["distance_printed"][0]) > 0


def test_words_on_replica_symmetry(theory):
    curve = Curve(r"$\lambda=10^{-4}$", ("k", "-", "o"), theory, None, stretch=2.0)
    assert "nowhere" in where_unproven([curve])
    assert plain(curve.label) == "λ=1e-4"
    bad = theory.ds.copy(deep=True)
    bad["jump_weight"][:] = [0.02, 0.0]
    other = asx.Result(bad, problem=theory.problem, kind="theory")
    changed = Curve(curve.label, curve.look, other, None, stretch=2.0)
    assert "λ=1e-4: at ᾱ = 8, on up to 2.0 % of the data" in where_unproven([changed], "ᾱ")
