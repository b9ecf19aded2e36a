"""Errors far below the rounding of Q_0 - 2m + q, against known limits, identities and numbers from elsewhere."""

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.theory.two_equations import two_equations
from reference_numbers import reference

REFERENCE = {entry["name"]: entry for entry in reference("outliers_and_scaling")["entries"]}


def linear(target, noise=0.5, **options):
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=noise)
    return asx.RiskMinimization(task, **options)


def solve(problem, alpha):
    return asx.solve(problem, alpha=alpha, progress=False)


# -- where both are accurate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameterization", ["factorized", "full"])
@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_the_error_is_that_of_the_order_parameters(activation, parameterization):
    task = asx.AttentionIndex(noise=0.5, activation=activation)
    theory = solve(asx.RiskMinimization(task, parameterization=parameterization), alpha=[0.2, 1.0])
    by_parameters = task.signal - 2 * theory.m + theory.q
    np.testing.assert_allclose(theory.estimation_error, by_parameters, rtol=1e-11)


def test_the_error_with_a_penalty_of_ones_own_is_that_of_the_order_parameters():
    theory = solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5), penalty=lambda t: t + 0.1 * t**2), alpha=1.0)
    assert float(theory.estimation_error) == pytest.approx(1.5 - 2 * float(theory.m) + float(theory.q), rel=1e-11)


def test_bayes_the_positive_terms_are_the_difference():
    """delta^2 - (4 pi^2/3) delta^4 int mu^3, which still has digits here."""
    for target, delta in ((asx.MarchenkoPastur(0.3), 0.7), (asx.RankedPowerLaw(1.0, 200), 3.0)):
        law = target.convolution(delta)
        assert law.noise_left() == pytest.approx(delta**2 - 4 * np.pi**2 / 3 * delta**4 * law.cube(), rel=1e-9)


@pytest.mark.parametrize(("weight_decay", "noise", "alpha"), [(0.1, 0.5, 0.3), (0.02, 0.0, 0.4), (0.0, 0.5, 2.0)])
def test_two_equations_are_the_fixed_point_of_state_evolution(weight_decay, noise, alpha):
    problem = linear(asx.MarchenkoPastur(0.4), noise, weight_decay=weight_decay)
    evolution = problem.theory.equations.evolution()
    iterated = evolution.solve(alpha, tolerance=1e-12)
    found = solve(problem, alpha)
    for name, value in zip(("m", "q", "Sigma"), iterated.parameters, strict=True):
        assert float(found[name]) == pytest.approx(value, rel=1e-9)


# -- small errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [asx.MarchenkoPastur(0.5), asx.MarchenkoPastur(2.0), asx.RankedPowerLaw(1.0, 200)])
def test_without_noise_and_ample_data_the_penalty_alone_is_left(target):
    """eps = lt/(2 (a - DIV)) is taken off every positive eigenvalue, and a delta^2 = R is what noise that leaves.

    R = rank eps^2 + e delta^2, where e <= 1 is the share of directions in which delta counts: 1 at full rank, where
    DIV = 1 too, up to the repulsion of eigenvalues closer than delta.
    """
    rank, samples = 1 - target.zero_mass, 100.0
    for decay in (1e-2, 1e-4):
        theory = solve(linear(target, 0.0, weight_decay=decay), alpha=samples / 2)
        eps, error = float(theory.eps), float(theory.estimation_error)
        assert rank * eps**2 < error < rank * eps**2 / (1 - 1 / samples) * (1 + 1e-3)
        assert samples * float(theory.delta) ** 2 == pytest.approx(error, rel=1e-6)
        if rank == 1:
            assert eps == pytest.approx(decay / (2 * (samples - 1)), rel=1e-3)
            assert error == pytest.approx(eps**2 / (1 - 1 / samples), rel=1e-3)
        assert float(theory.excess_error) == pytest.approx(2 * error, rel=1e-12)
    assert error < 1e-12


def test_softmax_without_noise_keeps_its_digits():
    """The same two lines in a channel that is sampled: R falls as the square of the decay down to 1e-15."""
    task = asx.AttentionIndex(target=asx.MarchenkoPastur(0.5))
    errors = [float(solve(asx.RiskMinimization(task, weight_decay=w), 0.3).estimation_error) for w in (1e-7, 1e-9)]
    assert errors[1] < 1e-14
    assert errors[0] / errors[1] == pytest.approx(1e4, rel=1e-3)


def test_bayes_errors_are_small_where_fields_are_strong():
    """Noise Delta, all directions resolved: R -> Delta/(2a) as a grows, less what repulsion leaves."""
    task = asx.AttentionIndex(tokens=1, activation="linear", target=asx.Atoms((1.0, 2.0, 3.5)), noise=1e-4)
    theory = solve(asx.BayesOptimal(task), alpha=[1e4, 1e6])
    # of three atoms each knows its multiplicity: of (1 - sum w^2) = 2/3 of the entries only is there an error
    np.testing.assert_allclose(theory.estimation_error, 2 / 3 * 0.5e-4 / (2 * theory.alpha), rtol=1e-3)
    assert float(theory.estimation_error[-1]) < 1e-10


def test_interpolation_without_noise_on_a_power_law():
    """Where the bracket used to end in rounding: error and samples follow phase N."""
    target = asx.RankedPowerLaw(1.5, 10**4)
    law = two_equations(target, 0.0, 0.02, 0.0)
    assert law.divergence == pytest.approx(0.02, rel=1e-10)
    assert 0.02 * law.delta**2 == pytest.approx(law.error(1.0), rel=1e-9)
    theory = solve(linear(target, 0.0, weight_decay=0), alpha=0.01)
    assert theory.ok
    assert float(theory.estimation_error) == pytest.approx(law.error(1.0), rel=1e-9)


# -- numbers from elsewhere ------------------------------------------------------------------------------------------


def test_finite_dimension_against_reference():
    entry = REFERENCE["powerlaw_finite_d_error"]
    for case, error, delta in zip(
        entry["inputs"]["cases"], entry["values"]["estimation_error"], entry["values"]["delta"], strict=True
    ):
        alpha = case["n"] / 400**2
        decay = 400**-0.15 if case["gamma"] == 0.6 else 0.1 * np.sqrt(alpha)
        theory = solve(linear(asx.RankedPowerLaw(case["gamma"], 400), case["noise"], weight_decay=decay), alpha)
        assert float(theory.estimation_error) == pytest.approx(error, abs=entry["error"])
        assert float(theory.delta) == pytest.approx(delta, abs=entry["error"])


def test_overfitting_branch_against_reference():
    entry = REFERENCE["overfitting_branch"]
    given = entry["inputs"]
    problem = linear(asx.RankedPowerLaw(given["gamma"], given["dim"]), given["noise"], weight_decay=0)
    theory = solve(problem, alpha=given["a"] / 2)
    assert float(theory.estimation_error) == pytest.approx(entry["values"]["estimation_error"], abs=entry["error"])


def test_amplitude_of_the_optimal_decay_against_reference():
    """R over A k* delta^2/d at eps = 2 delta, where A = 6 - 8/(1+g) + 3/(1+2g) + 1/(2g-1)."""
    entry = REFERENCE["amplitude_optimal_decay"]
    d, rank = entry["inputs"]["dim"], entry["inputs"]["kstar"]
    columns = zip(entry["inputs"]["gamma"], *entry["values"].values(), strict=True)
    for gamma, amplitude, ratio in columns:
        assert 6 - 8 / (1 + gamma) + 3 / (1 + 2 * gamma) + 1 / (2 * gamma - 1) == pytest.approx(amplitude)
        target = asx.RankedPowerLaw(gamma, d)
        delta = target.amplitude * np.sqrt(d) * rank**-gamma
        x, weight, g = target.convolution(delta).nodes_cut_at(2 * delta)
        best, cut = x - 2 * delta**2 * g.real, np.maximum(x - 2 * delta, 0)
        error = weight @ (delta**2 * (1 - delta**2 * abs(g) ** 2) + (cut - best) ** 2)
        assert error / (amplitude * rank * delta**2 / d) == pytest.approx(ratio, abs=entry["error"])
