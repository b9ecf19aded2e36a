"""Exponents and amplitudes of the phases, the best decay, the best width, and what is read off curves."""

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.attention_index.penalties.spectral_estimate import narrow_cut, overlaps
from asymptotix.attention_index.theory.two_equations import two_equations
from asymptotix.core.status import Status
from reference_numbers import reference

REFERENCE = {entry["name"]: entry for entry in reference("outliers_and_scaling")["entries"]}
DIM = 10**6


def amplitude(gamma: float) -> float:
    return 6 - 8 / (1 + gamma) + 3 / (1 + 2 * gamma) + 1 / (2 * gamma - 1)


def bayes_amplitude(gamma: float) -> float:
    return 2 - 1 / (1 + 2 * gamma) + 1 / (2 * gamma - 1)


def linear(target, noise=0.5, **options):
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=noise)
    return asx.RiskMinimization(task, **options)


def slope(errors, samples) -> float:
    return float(np.diff(np.log(errors))[0] / np.diff(np.log(samples))[0])


# -- phases ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_limited_at_the_optimal_decay():
    """Phase II, lt = sqrt(8 Delta a): slope -(1 - 1/(2g)), amplitude A; corrections are k*/d to the power 2/5."""
    target, noise = asx.RankedPowerLaw(1.0, DIM), 0.5
    samples = np.array([1e4, 4e5]) / DIM
    errors = [two_equations(target, noise, a, np.sqrt(8 * noise * a)).error(1.0) for a in samples]
    assert slope(errors, samples) == pytest.approx(-0.5, abs=0.01)
    predicted = amplitude(1.0) * target.amplitude * np.sqrt((noise / 2 + errors[1]) / (samples[1] * DIM))
    assert errors[1] == pytest.approx(predicted, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.75, 1.5])
def test_over_regularised(gamma):
    """Phase I: slope -(2 - 1/g) without noise and with a decay that outweighs it, amplitude 2g/(2g-1)."""
    target, decay = asx.RankedPowerLaw(gamma, DIM), 300.0
    # some hundred directions are learned, far from one and from d
    samples = np.array([300.0, 600.0]) if gamma > 1 else np.array([10.0, 20.0])
    errors = [two_equations(target, 0.0, a, decay).error(1.0) for a in samples]
    assert slope(errors, samples) == pytest.approx(-(2 - 1 / gamma), abs=0.02)
    if gamma > 1:  # below, the finite rank counts: [1 - (k*/d)^(2g-1)] is not yet one
        eps = decay / (2 * samples[1])
        predicted = (
            2 * gamma / (2 * gamma - 1) * target.amplitude ** (1 / gamma) * (eps**2 / DIM) ** (1 - 1 / (2 * gamma))
        )
        assert errors[1] == pytest.approx(predicted, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_noiseless_interpolation(gamma):
    """Phase N: slope -(2g-1); k* = a d/A, both up to (k*/d)^(2/5) = 0.04."""
    target = asx.RankedPowerLaw(gamma, DIM)
    samples = np.array([6e-4, 1.2e-3])
    laws = [two_equations(target, 0.0, a, 0.0) for a in samples]
    assert slope([law.error(1.0) for law in laws], samples) == pytest.approx(-(2 * gamma - 1), rel=0.04)
    learned = (target.amplitude * np.sqrt(DIM) / laws[0].delta) ** (1 / gamma)
    assert samples[0] * DIM / learned == pytest.approx(amplitude(gamma), rel=0.05)


def test_overfitting_rises_with_samples():
    """Phase III: R tends to that of phase II plus K (Delta/2) a^(2/5), with corrections of order a^(2/5) = 0.03."""
    target, noise = asx.RankedPowerLaw(1.5, 10**9), 0.5
    samples = np.array([1e-4, 3e-4])
    errors = np.array([two_equations(target, noise, a, 0.0).error(1.0) for a in samples])
    assert errors[1] > 1.2 * errors[0]
    K = 16 / (105 * np.pi) * (15 * np.pi / 8) ** 1.4
    spikes = amplitude(1.5) * target.amplitude ** (2 / 3) * (noise / (2 * samples * 10**9)) ** (2 / 3)
    assert errors[0] == pytest.approx(spikes[0] + K * noise / 2 * samples[0] ** 0.4, rel=0.03)
    assert slope(errors - spikes, samples) == pytest.approx(0.4, abs=0.04)


def test_all_noise_fitted_and_refinement():
    """Phase V: R = Delta/(2 (2a - 1)) for k* << d; a finite rank r: (r/d) (c^2 + 2) delta^2 at the optimal decay."""
    found = two_equations(asx.RankedPowerLaw(1.5, DIM), 0.5, 20.0, 1e-3)
    assert found.error(1.0) == pytest.approx(0.5 / (2 * (2 * 20.0 - 1)), rel=0.02)
    few = asx.RankedPowerLaw(1.0, DIM, rank=50)
    found = two_equations(few, 0.5, 1e3, np.sqrt(8 * 0.5 * 1e3))
    assert found.error(1.0) == pytest.approx(50 / DIM * 6 * found.delta**2, rel=0.02)


@pytest.mark.slow
def test_bayes_pays_less_by_the_ratio_of_the_amplitudes():
    """The same exponent, B_Bayes in the place of A, to 1/k*; of what is not learned the mean is known from the law."""
    target = asx.RankedPowerLaw(1.0, DIM)
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=0.5)
    theory = asx.solve(asx.BayesOptimal(task), alpha=0.05, progress=False)
    delta = float(theory.qhat) ** -0.5
    learned = target.amplitude * np.sqrt(DIM) / delta
    values, weights = target.points
    mean = weights[values < delta] @ values[values < delta]
    expected = bayes_amplitude(1.0) * learned * delta**2 / DIM - mean**2
    assert float(theory.estimation_error) == pytest.approx(expected, rel=5e-3)


def test_full_matrices_learn_nothing_before_d_squared():
    """Only Q_0 counts: at the best decay R = Q_0 delta^2/(Q_0 + delta^2)."""
    target = asx.RankedPowerLaw(1.0, 10**4)
    best = asx.optimal_weight_decay(linear(target, parameterization="full"), 0.01, observable="estimation_error")
    delta = float(asx.solve(linear(target, parameterization="full", weight_decay=best.weight_decay), alpha=0.01).delta)
    assert best.value == pytest.approx(delta**2 / (1 + delta**2), rel=1e-5)
    assert best.value > 0.95


# -- the best decay and the best width -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_decay_is_at_the_edge_of_the_noise():
    """c_opt = 2 - [(15 pi/2) (k*/d) g/(1+g)]^(2/5), and lt = sqrt(qhat) to that."""
    target, alpha = asx.RankedPowerLaw(1.0, 10**4, rank=300), 0.01
    problem = linear(target)
    best = asx.optimal_weight_decay(problem, alpha, observable="estimation_error")
    theory = asx.solve(linear(target, weight_decay=best.weight_decay), alpha=alpha, progress=False)
    delta, ratio = float(theory.delta), float(theory.eps / theory.delta)
    learned = target.amplitude * np.sqrt(10**4) / delta
    # the next term is of order (k*/d)^(4/5) = 0.02
    assert ratio == pytest.approx(2 - (7.5 * np.pi * learned / 10**4 / 2) ** 0.4, abs=0.02)
    assert best.value == pytest.approx(float(theory.estimation_error), rel=1e-9)
    for factor in (0.8, 1.25):
        worse = asx.solve(linear(target, weight_decay=factor * best.weight_decay), alpha=alpha, progress=False)
        assert float(worse.estimation_error) > best.value


def test_the_best_decay_is_that_of_the_derivative():
    problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5, activation="linear"))
    by_value = asx.optimal_weight_decay(problem, 1.0)
    by_root = asx.optimum(problem, "test_error", "weight_decay", bounds=(1e-2, 10), alpha=1.0)
    assert by_value.weight_decay == pytest.approx(by_root.at, abs=3 * by_value.weight_decay_err)
    assert by_value.value == pytest.approx(by_root.value, rel=1e-6)


def test_without_noise_the_best_decay_is_none():
    best = asx.optimal_weight_decay(linear(asx.MarchenkoPastur(0.5), 0.0), 0.3)
    assert best.weight_decay == 0
    assert "vanishing weight decay" in best.words
    with pytest.raises(ValueError, match="observable must be one of"):
        asx.optimal_weight_decay(linear(asx.MarchenkoPastur(0.5)), 0.1, observable="m")
    with pytest.raises(TypeError, match="problem must be a RiskMinimization"):
        asx.optimal_weight_decay(asx.BayesOptimal(asx.AttentionIndex()), 0.1)  # type: ignore[arg-type]


def test_where_recovery_is_exact_no_decay_is_needed():
    best = asx.optimal_weight_decay(linear(asx.MarchenkoPastur(0.5), 0.0), 3.0)
    assert (best.weight_decay, best.value) == (0, 0)
    assert "recovery is exact" in best.words


def test_a_flat_error_has_no_best_decay_and_that_is_said():
    """Spikes of weight zero on nothing: no decay is too large."""
    with pytest.warns(asx.ConvergenceWarning, match="does not tell this place from others"):
        best = asx.optimal_weight_decay(linear(asx.Spiked(None, (2.0,)), 1.0), 0.5)
    assert np.isinf(best.weight_decay_err)
    assert best.status is Status.INACCURATE


def test_the_best_decay_is_that_of_one_alpha():
    with pytest.raises(TypeError, match=r"alpha must be one positive number, got \[0.1, 0.2\]"):
        asx.optimal_weight_decay(linear(asx.MarchenkoPastur(0.5)), [0.1, 0.2])  # type: ignore[arg-type]


def test_the_best_width():
    """m = 3^(-1/(2g)) k*, amplitude 3^(-1/(2g)) [2 + 1/(1+2g) + 3/(2g-1)] in the place of A.

    A hard cut at fixed delta, without decay; one rank more or less changes the error by (1/k*)^2.
    """
    gamma, learned = 1.0, 1000
    target = asx.RankedPowerLaw(gamma, DIM)
    delta = target.amplitude * np.sqrt(DIM) * learned**-gamma
    law = target.convolution(delta)
    widths = np.round(3 ** (-1 / (2 * gamma)) * learned * np.array([0.85, 1.0, 1.15])) / DIM

    def error(width: float) -> float:
        low, _ = narrow_cut(law, 0.0, width)
        x, _, _ = nodes = law.nodes_cut_at(low)
        found = overlaps(1.0, delta, nodes, np.where(x > low, x, 0.0))
        return found.apart + (1 - found.m) ** 2

    errors = [error(width) for width in widths]
    assert errors[1] < min(errors[0], errors[2])
    best = widths[1] + 0.5 * (widths[1] - widths[0]) * (errors[0] - errors[2]) / (errors[0] - 2 * errors[1] + errors[2])
    assert best * DIM == pytest.approx(3 ** (-1 / (2 * gamma)) * learned, rel=0.01)
    factor = 3 ** (-1 / (2 * gamma)) * (2 + 1 / (1 + 2 * gamma) + 3 / (2 * gamma - 1))
    assert errors[1] == pytest.approx(factor * learned * delta**2 / DIM, rel=2e-3)


# -- narrow learners -------------------------------------------------------------------------------------------------


def test_narrow_learners_against_reference():
    entry = REFERENCE["narrow_learner_softmax"]
    for k, width in enumerate(entry["inputs"]["width_ratio"]):
        problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.01, width_ratio=width)
        theory = asx.solve(problem, alpha=entry["inputs"]["alpha"], progress=False)
        for name, values in entry["values"].items():
            assert float(theory[name]) == pytest.approx(values[k], abs=entry["error"]), (name, width)
        assert theory.ok
        assert "narrow: heuristic" in theory.status.item()
        assert np.isinf(float(theory.replicon))
        with pytest.raises(ValueError, match="no learned law for a learner narrower than its rank"):
            theory.spectrum()


def test_a_cut_between_outliers_is_as_safe_as_none():
    """Two directions stand out of a bulk; a learner with room for two keeps them, and the replicon is finite."""
    target = asx.Atoms((0.0, 6.0, 9.0), weights=(0.98, 0.01, 0.01))
    wide, narrow = (
        asx.solve(linear(target, weight_decay=0.3 / np.sqrt(width), width_ratio=width), alpha=1.0, progress=False)
        for width in (1.0, 0.02)
    )
    assert float(wide["rank"]) > 0.1
    assert float(narrow["rank"]) == pytest.approx(0.02, rel=1e-9)
    assert "narrow: heuristic" in narrow.status.item()
    assert "diverges" not in narrow.status.item()
    assert 0 < float(narrow.replicon) < 1
    assert float(narrow.estimation_error) < float(wide.estimation_error)


def test_width_makes_no_difference_where_it_suffices():
    wide, enough = (
        asx.solve(
            linear(asx.MarchenkoPastur(0.3), weight_decay=0.5 / np.sqrt(w), width_ratio=w), alpha=1.0, progress=False
        )
        for w in (1.0, 0.9)
    )
    assert float(wide["rank"]) < 0.9
    assert float(wide.q) == pytest.approx(float(enough.q), rel=1e-12)
    assert enough.status.item() == "converged"


def test_narrow_without_decay_cannot_interpolate_what_a_wide_one_can():
    narrow = asx.solve(linear(asx.MarchenkoPastur(0.5), weight_decay=0, width_ratio=0.1), alpha=0.2, progress=False)
    wide = asx.solve(linear(asx.MarchenkoPastur(0.5), weight_decay=0), alpha=0.2, progress=False)
    assert float(wide.train_error) == 0 < float(narrow.train_error)
    assert float(narrow.eps) == 0
    assert float(narrow["rank"]) == pytest.approx(0.1, rel=1e-9)


# -- the best population predictor -----------------------------------------------------------------------------------


def test_population_optimum_against_reference():
    entry = REFERENCE["population_optimum_softmax"]
    best = asx.population_optimum(asx.AttentionIndex(target=asx.Atoms((1.0,)), noise=0.5))
    assert best.rho == pytest.approx(entry["values"]["rho_inf"], abs=entry["error"]["rho_inf"])
    # the last digit printed, and what two orders of nodes differ by
    assert best.test_error == pytest.approx(entry["values"]["e_inf"], abs=1e-9)
    assert 0 < best.test_error_err < 1e-8


def test_effective_noise_of_a_softmax_against_reference():
    """v = alpha delta^2 where next to nothing is left to learn: what phase II has in the place of Delta/(4 L)."""
    entry = REFERENCE["population_optimum_softmax"]
    given = entry["inputs"]
    task = asx.AttentionIndex(given["tokens"], asx.RankedPowerLaw(2.0, DIM), given["noise"], beta=given["beta"])
    alpha = 10.0
    theory = asx.solve(asx.RiskMinimization(task, weight_decay=3.0), alpha=alpha, progress=False)
    best = asx.population_optimum(task)
    v, error = entry["values"]["effective_noise_v"], entry["error"]["v"]
    # what is not learned is noise too, in proportion to its share of the error
    assert float(theory.excess_error) < error / v * best.test_error
    assert alpha * float(theory.delta) ** 2 == pytest.approx(v, abs=error)


def test_population_optimum_where_it_is_known():
    assert asx.population_optimum(asx.AttentionIndex(noise=0.0)) == (1.0, 0.0, 0.0, 0.0)
    assert asx.population_optimum(asx.AttentionIndex(target_beta=2.0))[:2] == (2.0, 0.0)
    assert asx.population_optimum(asx.AttentionIndex(noise=0.5, activation="linear"))[:2] == (1.0, 1.5)
    three = asx.population_optimum(asx.AttentionIndex(tokens=3, noise=0.5))
    assert 0.8 < three.rho < 1
    assert 0 < three.test_error_err < 1e-3
    with pytest.raises(NotImplementedError, match="hardmax"):
        asx.population_optimum(asx.AttentionIndex(activation="hardmax"))
    with pytest.raises(TypeError, match="model must be an AttentionIndex"):
        asx.population_optimum(asx.RiskMinimization(asx.AttentionIndex()))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_excess_is_what_is_left_and_keeps_its_digits():
    """Small excesses are a share Sigmahat/(4 alpha) of the distance from rho S_0, where that is noise all around."""
    task = asx.AttentionIndex(target=asx.RankedPowerLaw(1.0, 2000), noise=0.5)
    best = asx.population_optimum(task)
    theory = asx.solve(asx.RiskMinimization(task, weight_decay=3.0), alpha=1e4, progress=False)
    apart = float(theory.q) - float(theory.m) ** 2
    distance = apart + (float(theory.m) - best.rho) ** 2
    excess, error = float(theory.excess_error), float(theory.excess_error_err)
    assert excess < 1e-4
    assert excess == pytest.approx(float(theory.Sigmahat) / (4 * 1e4) * distance, rel=5e-3)
    assert error < 1e-3 * excess
    assert excess == pytest.approx(float(theory.test_error) - best.test_error, abs=1e-8)


def test_nothing_learned_has_all_the_excess():
    problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=20.0)
    theory = asx.solve(problem, alpha=0.5, progress=False)
    best = asx.population_optimum(problem.model)
    assert float(theory.excess_error) == pytest.approx(float(theory.test_error) - best.test_error, rel=1e-6)


# -- exponents of curves ---------------------------------------------------------------------------------------------


class Curve:
    """A result with one observable, (b, alpha), and its errors."""

    problem = None

    def __init__(self, function, alpha, error=0.0):
        alpha = np.asarray(alpha, float)
        values = np.array([function(alpha), 2 * function(alpha)])
        self.ds = xr.Dataset(
            {"e": (("b", "alpha"), values), "e_err": (("b", "alpha"), error * values)},
            coords={"alpha": alpha, "b": [1.0, 2.0]},
        )


def test_the_exponent_of_a_power_law_is_exact():
    found = asx.scaling_exponent(Curve(lambda x: 3 * x**-0.7, [1, 2, 5, 20]), "e")
    np.testing.assert_allclose(found.mean, -0.7, atol=1e-14)
    np.testing.assert_allclose(found.local.slope, -0.7, atol=1e-14)
    np.testing.assert_allclose(found.spread, 0, atol=1e-14)
    assert found.local.slope.dims == ("alpha", "b")
    assert "slopes from -0.700 to -0.700" in repr(found)


def test_errors_and_windows_of_exponents():
    """A line through two decades with shares s at n points: s/sqrt(sum (log x - mean)^2)."""
    x = np.geomspace(1, 100, 5)
    found = asx.scaling_exponent(Curve(lambda x: x**-1.0, x, error=0.01), "e")
    np.testing.assert_allclose(found.error, 0.01 / np.sqrt(((np.log(x) - np.log(10)) ** 2).sum()))
    np.testing.assert_allclose(found.local.slope_err.isel(alpha=2), 0.01 * np.sqrt(2) / np.log(10))
    bent = asx.scaling_exponent(Curve(lambda x: x**-1.0 + 0.01, x), "e", window=(1, 4))
    assert (abs(bent.mean + 1) < 0.02).all()
    assert (asx.scaling_exponent(Curve(lambda x: x**-1.0 + 0.01, x), "e").spread > 0.1).all()


@pytest.mark.parametrize(("missing", "value"), [(1, np.nan), (4, np.nan), (0, np.inf)])
def test_points_without_a_number_are_stepped_over(missing, value):
    x = np.geomspace(1, 100, 5)
    curve = Curve(lambda x: x**-1.5, x, error=0.01)
    curve.ds["e"][{"alpha": missing, "b": 0}] = value
    found = asx.scaling_exponent(curve, "e")
    np.testing.assert_allclose(found.mean, -1.5, atol=1e-13)
    expected = np.full((5, 2), -1.5)
    expected[missing, 0] = np.nan
    np.testing.assert_allclose(found.local.slope, expected, atol=1e-13)
    assert found.error[0] > found.error[1] > 0  # a line through fewer points
    curve.ds["e"][{"alpha": slice(1, None), "b": 0}] = np.nan
    assert np.isnan(asx.scaling_exponent(curve, "e").mean[0])  # one point is no line


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda curve: asx.scaling_exponent(curve, "f"), "observable must be one of e, e_err, got 'f'"),
        (
            lambda curve: asx.scaling_exponent(curve, "e", "n"),
            "along must be a dimension of e with values, here b, alpha",
        ),
        (lambda curve: asx.scaling_exponent(curve, "e", "b"), "b must have three or more positive"),
        (lambda curve: asx.scaling_exponent(curve, "e", window=(3, 2)), "window must be ascending"),
        (lambda curve: asx.scaling_exponent(curve, "e", window=(3, 4)), "window must contain two or more"),
        (lambda _: asx.scaling_exponent(Curve(lambda x: 3 - x, [1, 2, 5]), "e"), "must be positive.*alpha=5"),
    ],
)
def test_what_an_exponent_refuses(call, words):
    with pytest.raises(ValueError, match=words):
        call(Curve(lambda x: x, [1, 2, 5]))


def test_an_exponent_is_of_a_result():
    with pytest.raises(TypeError, match="result must be that of solve or simulate, got 3"):
        asx.scaling_exponent(3)  # type: ignore[arg-type]


def test_experiments_are_averaged_over_seeds():
    values = np.array([[1.0, 0.5, 0.25], [1.1, 0.45, 0.26]])
    curve = Curve(lambda x: x, [1, 2, 4])
    curve.ds = xr.Dataset({"e": (("seed", "alpha"), values)}, coords={"alpha": [1.0, 2.0, 4.0], "seed": [0, 1]})
    found = asx.scaling_exponent(curve, "e")
    assert float(found.mean) == pytest.approx(float(np.polyfit(np.log([1, 2, 4]), np.log(values.mean(0)), 1)[0]))
    assert float(found.error) > 0


def test_below_one_half_there_is_no_power_law_and_that_is_said():
    theory = asx.solve(linear(asx.RankedPowerLaw(0.3, 200)), alpha=[0.1, 0.3, 1.0], progress=False)
    assert "no power law in n at gamma = 0.3" in asx.scaling_exponent(theory).words
    assert "no power law" in repr(asx.scaling_exponent(theory))
    theory = asx.solve(linear(asx.RankedPowerLaw(0.8, 200)), alpha=[0.1, 0.3, 1.0], progress=False)
    assert asx.scaling_exponent(theory).words == ""
