"""Thresholds, the limit of vanishing weight decay, and what both must agree on."""

import numpy as np
import pytest

import asymptotix as asx
from reference_numbers import reference

REFERENCE = reference("attention_index")


def model(kappa0=0.5, noise=0.0, tokens=2, **options) -> asx.AttentionIndex:
    return asx.AttentionIndex(tokens=tokens, target=asx.MarchenkoPastur(kappa0), noise=noise, **options)


def limits(task, **options):
    return asx.thresholds(asx.RiskMinimization(task, weight_decay=0, **options), progress=False)


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_thresholds_against_reference(tokens):
    for row in REFERENCE["thresholds"]["strong"]:
        if row["T"] == tokens:
            assert float(limits(model(row["kappa0"], tokens=tokens)).exact_recovery) == pytest.approx(
                row["alpha"], rel=1e-10
            )
    for row in REFERENCE["thresholds"]["interp"]:
        if row["T"] == tokens:
            found = limits(model(row["kappa0"], row["Delta"], tokens)).interpolation
            assert float(found) == pytest.approx(row["alpha"], rel=1e-9)
    for row in REFERENCE["thresholds"]["bo"]:
        if row["T"] == tokens:
            found = asx.thresholds(asx.BayesOptimal(model(row["kappa0"], tokens=tokens)), progress=False)
            assert float(found.exact_recovery) == pytest.approx(row["alpha"], rel=1e-12)
    full = limits(model(tokens=tokens), parameterization="full")
    assert float(full.exact_recovery) == 1 / (tokens**2 + tokens - 2)


@pytest.mark.parametrize("kappa0", [0.05, 0.3, 0.7])
def test_order_of_the_thresholds(kappa0):
    bayes = float(asx.thresholds(asx.BayesOptimal(model(kappa0)), progress=False).exact_recovery)
    factorized, full = limits(model(kappa0)), limits(model(kappa0), parameterization="full")
    assert bayes < float(factorized.exact_recovery) < float(factorized.interpolation) <= float(full.exact_recovery)


@pytest.mark.parametrize("kappa0", [1.0, 1.7])
def test_full_rank_targets_are_recovered_at_the_count_of_unknowns(kappa0):
    assert float(limits(model(kappa0)).exact_recovery) == 0.25
    assert float(limits(model(kappa0 - 1e-9 if kappa0 == 1 else kappa0)).exact_recovery) == pytest.approx(
        0.25, abs=1e-6
    )


def test_low_rank_limit():
    for kappa0, ratio in ((1e-3, 0.90), (1e-5, 0.983)):
        assert float(limits(model(kappa0)).exact_recovery) * 4 / (6 * kappa0) == pytest.approx(ratio, abs=0.005)


def test_noise_takes_exact_recovery_away_and_lowers_interpolation():
    quiet, noisy, loud = (limits(model(noise=noise)) for noise in (1e-4, 0.5, 1e4))
    assert float(noisy.exact_recovery) == np.inf
    assert float(quiet.interpolation) > float(noisy.interpolation) > float(loud.interpolation)
    assert float(loud.interpolation) == pytest.approx(1 / 8, rel=0.02)  # half the unknowns of a symmetric matrix
    assert float(quiet.interpolation) == pytest.approx((1 - 0.5 * 0.25) / 4, rel=0.04)
    assert float(limits(model(noise=1e-7)).interpolation) == pytest.approx((1 - 0.5 * 0.25) / 4, rel=0.004)


@pytest.mark.parametrize(
    "row", REFERENCE["lambda0_and_phi"]["lambda0_fact"], ids=lambda r: f"{r['alpha']} {r['Delta']}"
)
def test_least_trace_interpolator_against_reference(row):
    problem = asx.RiskMinimization(model(row["kappa0"], row["Delta"]), weight_decay=0)
    found = asx.solve(problem, alpha=row["alpha"], progress=False)
    for key, name in (
        ("delta", "delta"),
        ("eps", "eps"),
        ("q", "q"),
        ("m", "m"),
        ("rank", "rank"),
        ("test", "test_error"),
    ):
        # Close to exact recovery delta tends to zero and the equations lose digits; the error is by another rule.
        assert float(found[name]) == pytest.approx(row[key], rel=1e-5 if key == "test" else 1e-7)
    assert float(found.train_error) == 0


def test_small_weight_decay_tends_to_the_limit():
    alphas = 0.1
    limit = asx.solve(asx.RiskMinimization(model(noise=0.5), weight_decay=0), alpha=alphas, progress=False)
    gaps = []
    for row in REFERENCE["lambda0_and_phi"]["small_lambda_alpha0.1"]:
        found = asx.solve(asx.RiskMinimization(model(noise=0.5), weight_decay=row["lam"]), alpha=alphas, progress=False)
        assert float(found.q) == pytest.approx(row["q"], rel=1e-4)
        gaps.append(float(limit.q - found.q))
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_above_interpolation_the_limit_is_the_problem_without_weight_decay():
    tiny, zero = (asx.RiskMinimization(model(noise=0.5), weight_decay=value) for value in (1e-6, 0.0))
    a, b = (asx.solve(problem, alpha=1.0, progress=False) for problem in (tiny, zero))
    assert float(a.test_error) == pytest.approx(float(b.test_error), rel=1e-4)


@pytest.mark.parametrize("tokens", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_least_norm_interpolator(tokens):
    count = tokens**2 + tokens - 2
    problem = asx.RiskMinimization(model(tokens=tokens), weight_decay=0, parameterization="full")
    found = asx.solve(problem, alpha=0.3 / count, progress=False)
    assert float(found.estimation_error) == pytest.approx(0.7 * 1.5, rel=1e-12)  # Q_0 (1 - 2 N alpha)
    tiny = asx.RiskMinimization(model(noise=0.5), weight_decay=1e-7, parameterization="full")
    limit = asx.RiskMinimization(model(noise=0.5), weight_decay=0, parameterization="full")
    a, b = (asx.solve(problem, alpha=0.1, progress=False) for problem in (tiny, limit))
    assert float(a.q) == pytest.approx(float(b.q), rel=1e-2)


def test_exact_recovery_is_said():
    problem = asx.RiskMinimization(model(), weight_decay=0)
    theory = asx.solve(problem, alpha=[0.2, 0.2115], progress=False)  # the threshold is 0.21109
    assert "exact" in str(theory.status.values[1])
    assert float(theory.test_error[1]) == 0
    assert 0 < float(theory.test_error[0]) < 1e-2


def test_linear_attention_counts_all_pairs():
    # The softmax of two tokens shows N = 2 directions, a linear layer all L = 3.
    linear = limits(model(activation="linear"))
    assert float(linear.exact_recovery) == pytest.approx(float(limits(model()).exact_recovery) * 2 / 3)
    one_token = asx.RiskMinimization(model(noise=0.5, tokens=1, activation="linear"), weight_decay=0.1)
    found = asx.solve(one_token, alpha=2.0, progress=False)
    assert found.ok
    assert abs(float(found.potential - found.train_loss)) < 1e-8


@pytest.mark.parametrize("parameterization", ["factorized", "full"])
@pytest.mark.parametrize("weight_decay", [1e-12, 1e-300])
def test_a_weight_decay_that_is_as_good_as_none(parameterization, weight_decay):
    tiny, zero = (
        asx.solve(
            asx.RiskMinimization(model(noise=0.5), weight_decay=value, parameterization=parameterization),
            alpha=0.1,
            progress=False,
        )
        for value in (weight_decay, 0.0)
    )
    assert tiny.ok
    assert f"the limit of weight_decay = {weight_decay:g}" in tiny.status.item()
    assert float(tiny.q) == float(zero.q)
    assert float(tiny.q_err) >= 30 * np.sqrt(weight_decay) * float(zero.q)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_without_noise_errors_fall_as_the_square_of_the_weight_decay(alpha):
    """Above exact recovery, down to errors of which Q_0 - 2m + q has no digit: the limit itself is zero."""
    decays = np.array([1e-6, 1e-7, 1e-8])
    found = [asx.solve(asx.RiskMinimization(model(), weight_decay=w), alpha=alpha, progress=False) for w in decays]
    shares = [
        np.array([float(point[name]) for point in found]) / decays**2 for name in ("estimation_error", "test_error")
    ]
    for share in shares:
        assert share[-1] * decays[-1] ** 2 < 1e-12
        # the next term is a share sqrt(R) of the first, 8e-5 at the largest decay, and falls with it
        np.testing.assert_allclose(share, share[-1], rtol=1e-3)
        assert abs(share[1] / share[2] - 1) < 0.2 * abs(share[0] / share[2] - 1)


def test_the_distance_to_the_limit_is_within_its_error():
    for weight_decay in (1e-9, 1e-6):
        problem, limit = (asx.RiskMinimization(model(noise=0.5), weight_decay=value) for value in (weight_decay, 0.0))
        near, at = (asx.solve(each, alpha=0.1, progress=False) for each in (problem, limit))
        assert 0 < abs(float(near.q / at.q) - 1) < 30 * np.sqrt(weight_decay)


def test_thresholds_that_numbers_do_not_resolve_fail_in_words():
    with pytest.warns(asx.ConvergenceWarning, match="has no root that numbers resolve|are not resolved"):
        loud = limits(model(noise=1e30))
    assert loud.status_code.item() == "failed"
    quiet = limits(model(noise=1e-30))
    assert abs(float(quiet.interpolation) - (1 - 0.125) / 4) <= float(quiet.interpolation_err) < 1e-5


def test_hardly_any_data_end_in_words_and_soon():
    problem = asx.RiskMinimization(model(noise=0.5), weight_decay=0)
    theory = asx.solve(problem, alpha=1e-3, progress=False)
    assert theory.ok
    with pytest.warns(asx.ConvergenceWarning):
        assert asx.solve(problem, alpha=1e-30, progress=False).status_code.item() == "failed"
