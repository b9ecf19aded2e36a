"""Outliers of the field and of the learned spectrum, against identities, random matrices and reference numbers."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import quad

import asymptotix as asx
from asymptotix.attention_index.outliers.outlier_law import critical_width, field_outliers
from reference_numbers import reference

REFERENCE = {entry["name"]: entry for entry in reference("outliers_and_scaling")["entries"]}
MP = asx.MarchenkoPastur(0.5)
ZERO_BULK = asx.AttentionIndex(1, asx.Spiked(None, (2.0,)), noise=1.0, activation="linear")


def values(name: str) -> dict:
    return REFERENCE[name]["values"]


# -- the formulas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bulk"), [("outlier_right_of_MP", MP), ("outlier_zero_bulk", None)])
def test_reference_numbers_of_the_field(name: str, bulk: asx.Target | None) -> None:
    given, expected = REFERENCE[name]["inputs"], values(name)
    target = asx.Spiked(bulk, (given["theta"],))
    x, overlap = target.convolution(given["delta"]).outlier(given["theta"])
    error = REFERENCE[name]["error"]
    assert float(x) == pytest.approx(expected["x"], abs=error)
    assert float(overlap) == pytest.approx(expected["overlap"], abs=error)
    assert 2 * given["theta"] - float(x) == pytest.approx(expected["bayes_eigenvalue"], abs=error)


def test_critical_widths() -> None:
    entry = REFERENCE["critical_delta"]
    target = asx.Spiked(MP, entry["inputs"]["theta"])
    assert critical_width(target)[::-1] == pytest.approx(entry["values"]["delta_c"], abs=entry["error"])
    for theta, width in zip(target.spikes, critical_width(target), strict=True):
        assert target.convolution(1.001 * width).outlier(theta)[1] == 0
        x, overlap = target.convolution(0.999 * width).outlier(theta)
        assert 0 < overlap < 0.01
        # It leaves the bulk at its edge: there x - edge is of second order in the distance from the threshold.
        assert 0 < x - target.convolution(0.999 * width).edges[-1, 1] < 1e-4 * x


def test_the_overlap_lacks_what_leaks_to_other_directions() -> None:
    target = asx.Spiked(asx.Atoms((0.0, 1.0, 2.0), (0.5, 0.25, 0.25)), (4.0, 6.0), dim=42)
    spectrum, delta = target.eigenvalues(42), 0.8
    field = field_outliers(target, delta)
    for theta, overlap in zip(field.theta, field.overlap, strict=True):
        lost = delta**2 / (42 * (theta - spectrum[spectrum != theta]) ** 2)
        assert lost.sum() == pytest.approx(1 - overlap, rel=1e-12)
        # the eigenvalue of S_0 in the direction of the outlier: that of the spike and what leaks to others
        kept = overlap * theta + lost @ spectrum[spectrum != theta]
        assert kept == pytest.approx(theta - delta**2 * target.off_support(theta)[0], rel=1e-12)


@pytest.mark.parametrize(("bulk", "theta"), [(MP, 5.5), (asx.MarchenkoPastur(0.1), 0.7), (None, 2.0)])
def test_random_matrices(bulk: asx.Target | None, theta: float) -> None:
    target, dim, draws = asx.Spiked(bulk, (theta,)), 400, 6
    delta = 0.6 * float(critical_width(target)[0])
    S0, rng = target.eigenvalues(dim), np.random.default_rng(0)
    spike = int(np.argmin(abs(S0 - theta)))
    found = []
    for _ in range(draws):
        noise = rng.standard_normal((dim, dim)) / np.sqrt(2 * dim)
        x, vectors = np.linalg.eigh(np.diag(S0) + delta * (noise + noise.T))
        best = int(np.argmax(vectors[spike] ** 2))
        found.append((x[best], vectors[spike, best] ** 2, S0 @ vectors[:, best] ** 2))
    expected = target.convolution(delta).outlier(theta)
    kept = theta - delta**2 * float(target.off_support(theta)[0])
    # The outlier fluctuates by delta sqrt(2 overlap/d) from draw to draw, the others by a few overlaps of it;
    # the quantiles of the bulk are off by O(1/d).
    spread = delta * np.sqrt(2 / dim)
    mean = np.mean(found, axis=0)
    assert mean[0] == pytest.approx(float(expected[0]), abs=4 * spread / np.sqrt(draws) + 2 * theta / dim)
    assert mean[1] == pytest.approx(float(expected[1]), abs=0.03)
    assert mean[2] == pytest.approx(kept, abs=4 * spread / np.sqrt(draws) + 2 * theta / dim)


def test_equal_spikes_share_their_outlier() -> None:
    single, double = (asx.Spiked(MP, spikes, dim=200) for spikes in ((6.0,), (6.0, 6.0)))
    field = field_outliers(double, 1.0)
    assert field.location[0] == field.location[1]
    assert field.overlap[0] == field.overlap[1]
    assert field.location[0] == pytest.approx(field_outliers(single, 1.0).location[0], abs=1 / 200)


# -- what is learned -----------------------------------------------------------------------------------------------


def test_finite_dimension_of_a_softmax() -> None:
    entry = REFERENCE["learned_outlier_softmax_finite_d"]
    given = entry["inputs"]
    task = asx.AttentionIndex(given["tokens"], asx.Spiked(MP, (6.0, 9.0), dim=given["dim"]), noise=given["noise"])
    problem = asx.RiskMinimization(task, weight_decay=given["weight_decay"])
    theory = asx.solve(problem, alpha=given["alpha"], progress=False)
    found = theory.outliers()
    assert float(theory.delta) == pytest.approx(entry["values"]["delta"], abs=entry["error"])
    assert found.eigenvalue.values[::-1] == pytest.approx(entry["values"]["eigenvalue"], abs=entry["error"])
    assert found.overlap.values[::-1] == pytest.approx(entry["values"]["overlap"], abs=entry["error"])
    assert found.visible.all()
    assert found.singular_value.values == pytest.approx(np.sqrt(found.eigenvalue.values))


def test_a_spiked_law_is_that_of_its_eigenvalues() -> None:
    target = asx.Spiked(asx.Atoms((0.0, 1.0, 2.0), (0.5, 0.25, 0.25)), (4.0, 6.0), dim=42)
    empirical = asx.Empirical(target.eigenvalues(42))
    found = [
        asx.solve(asx.RiskMinimization(asx.AttentionIndex(2, law, 0.5, activation="linear"), 0.05), alpha=0.3)
        for law in (target, empirical)
    ]
    for name in ("m", "q", "delta", "eps", "test_error", "rank"):
        # the two iterations end where the residual is below 1e-11
        assert float(found[0][name]) == pytest.approx(float(found[1][name]), rel=1e-9)


def test_the_overlap_depends_on_the_width_alone() -> None:
    """Factorised and full learners have the same outlier of the field at equal delta."""
    task = asx.AttentionIndex(2, asx.Spiked(MP, (5.0, 8.0)), noise=0.5, activation="linear")
    first = asx.solve(asx.RiskMinimization(task, weight_decay=0.05), alpha=0.4, progress=False)
    second = asx.solve(asx.RiskMinimization(task, 0.05, parameterization="full"), alpha=0.4, progress=False)
    second.ds["delta"] = first.ds["delta"]
    one, other = first.outliers(), second.outliers()
    assert one.overlap.values == pytest.approx(other.overlap.values)
    assert one.location.values == pytest.approx(other.location.values)
    assert other.eigenvalue.values == pytest.approx(float(second.scale) * other.location.values)
    assert np.isnan(other.singular_value).all()


def test_a_bulk_that_the_penalty_removes_leaves_outliers() -> None:
    expected = values("zero_bulk_threshold_linear")["at_alpha_0p5"]
    theory = asx.solve(asx.RiskMinimization(ZERO_BULK, weight_decay=3.0), alpha=[0.2, 0.5], progress=False)
    found = theory.outliers().squeeze("spike")
    at = theory.sel(alpha=0.5)
    error = REFERENCE["zero_bulk_threshold_linear"]["error"]
    assert float(at.delta) == pytest.approx(expected["delta"], abs=error)
    assert float(at.eps) == pytest.approx(expected["eps"], abs=error)
    assert float(at.q) == 0
    learned = found.sel(alpha=0.5)
    assert float(learned.eigenvalue) == pytest.approx(expected["eigenvalue"], abs=error)
    assert float(learned.overlap) == pytest.approx(expected["overlap"], abs=error)
    hidden = found.sel(alpha=0.2)
    assert (bool(hidden.detached), bool(hidden.visible)) == (True, False)
    assert float(hidden.eigenvalue) == float(hidden.overlap) == 0


def test_the_noise_of_a_zero_bulk_is_learned_by_the_closed_equations() -> None:
    """Section "bulk removed": beyond lt^2 = 8 noise a the bulk is noise, with c = eps/delta from two equations."""
    a, noise, decay = 2.6, 1.0, 3.0
    theory = asx.solve(asx.RiskMinimization(ZERO_BULK, weight_decay=decay), alpha=a / 2, progress=False)
    delta, c = float(theory.delta), float(theory.eps / theory.delta)
    x = np.linspace(c, 2, 200_001)[1:-1]
    density = np.sqrt(4 - x**2) / (2 * np.pi) * (x[1] - x[0])
    j, D = density @ (x - c) ** 2, density @ ((x - c) * x)
    # the rectangle rule misses (2 - c)/2e5 of integrals of order 1e-2
    assert delta**2 * (a - j) == pytest.approx(noise / 2, rel=1e-6)
    assert 2 * c * delta * (a - D) == pytest.approx(decay, rel=1e-6)


def test_outliers_of_a_sweep_have_its_dimensions() -> None:
    problem = asx.BayesOptimal(asx.AttentionIndex(2, asx.Spiked(MP, (5.0, 8.0)), noise=0.5))
    swept = asx.solve(problem, alpha=[0.02, 0.5], kappa0=[0.4, 0.5], progress=False)
    found = swept.outliers()
    assert found.overlap.dims == ("alpha", "kappa0", "spike")
    alone = asx.solve(problem, alpha=0.5, kappa0=0.4, progress=False).outliers()
    xr.testing.assert_allclose(found.sel(alpha=0.5, kappa0=0.4), alone)
    assert alone.eigenvalue.values == pytest.approx(2 * alone.theta.values - alone.location.values)


def test_spikes_are_said_once_unless_the_sweep_changes_them() -> None:
    linear = asx.AttentionIndex(1, asx.Spiked(MP, (6.0, 9.0)), 0.5, activation="linear")
    problem, halves = asx.RiskMinimization(linear), [0.4, 0.5]
    found = asx.solve(problem, alpha=[0.1, 0.3], weight_decay=[0.05, 0.1], kappa0=halves, progress=False).outliers()
    assert found.overlap.dims == ("alpha", "weight_decay", "kappa0", "spike")
    assert found.theta.dims == ("spike",)
    ranked = asx.RiskMinimization(asx.AttentionIndex(1, asx.RankedPowerLaw(1.0, 30), 0.5, activation="linear"), 0.1)
    found = asx.solve(ranked, alpha=0.3, dim=[5, 30], progress=False).outliers()
    # of five eigenvalues there are five spikes
    assert found.theta.sel(dim=5).notnull().sum() == 5
    assert not found.visible.sel(dim=5).isel(spike=slice(5, None)).any()
    assert found.theta.sel(dim=30).values == pytest.approx(asx.RankedPowerLaw(1.0, 30).ranks(16))


@pytest.mark.slow
def test_outliers_of_what_was_selected_merged_and_loaded(tmp_path) -> None:
    task = asx.AttentionIndex(1, asx.Spiked(MP, (6.0, 9.0)), 0.5, activation="linear")
    theory = asx.solve(asx.RiskMinimization(task), alpha=[0.1, 0.3], dim=[50, 100], progress=False)
    whole = theory.outliers()
    theory.save(tmp_path / "theory.nc")
    xr.testing.assert_identical(asx.load(tmp_path / "theory.nc").outliers(), whole)
    xr.testing.assert_identical(asx.merge([theory.isel(alpha=[0]), theory.isel(alpha=[1])]).outliers(), whole)
    xr.testing.assert_allclose(theory.sel(dim=100).outliers(), whole.sel(dim=100))
    at_size = asx.RiskMinimization(replace(task, target=asx.Spiked(MP, (6.0, 9.0), dim=100)))
    alone = asx.solve(at_size, alpha=[0.1, 0.3], progress=False).outliers()
    assert whole.overlap.sel(dim=100).values == pytest.approx(alone.overlap.values)
    assert abs(whole.overlap.sel(dim=50) - whole.overlap.sel(dim=100)).min() > 1e-3


# -- thresholds ----------------------------------------------------------------------------------------------------


def spiked_task() -> asx.AttentionIndex:
    return asx.AttentionIndex(2, asx.Spiked(MP, (5.0, 6.0, 8.0)), noise=0.5)


def test_thresholds_at_vanishing_weight_decay() -> None:
    entry = REFERENCE["alpha_k_factorized_vanishing_decay"]
    limits = asx.thresholds(asx.RiskMinimization(spiked_task(), 0.0), which=("outlier",), progress=False)
    assert set(limits.ds.data_vars) >= {"outlier", "outlier_err"}
    assert "interpolation" not in limits.ds
    assert limits.outlier.values[::-1] == pytest.approx(entry["values"]["alpha"], abs=entry["error"])


def test_thresholds_of_bayes_optimal_learning() -> None:
    entry = REFERENCE["alpha_k_bayes"]
    problem = asx.BayesOptimal(spiked_task())
    limits = asx.thresholds(problem, progress=False)
    assert limits.outlier.values[::-1] == pytest.approx(entry["values"]["alpha"], abs=entry["error"])
    assert np.isinf(limits.outlier_until).all()
    alphas = np.sort(np.concatenate([0.999 * limits.outlier.values, 1.001 * limits.outlier.values]))
    visible = asx.solve(problem, alpha=alphas, progress=False).outliers().visible
    assert visible.sum("spike").values.tolist() == [0, 1, 1, 2, 2, 3]


@pytest.mark.slow
def test_thresholds_with_weight_decay() -> None:
    entry = REFERENCE["alpha_k_factorized"]
    limits = asx.thresholds(asx.RiskMinimization(spiked_task(), 0.01), which="outlier", progress=False)
    assert limits.outlier.values[::-1] == pytest.approx(entry["values"]["alpha"], abs=entry["error"])


def test_thresholds_of_a_zero_bulk() -> None:
    entry = REFERENCE["zero_bulk_threshold_linear"]
    limits = asx.thresholds(asx.RiskMinimization(ZERO_BULK, 3.0), progress=False)
    assert limits.outlier.item() == pytest.approx(entry["values"]["alpha_k"], abs=entry["error"])
    # half of the eigenvalues of pure noise are positive: d^2/4 of d^2/2 entries, one output each
    assert limits.interpolation.item() == pytest.approx(1 / 4)
    # without a penalty that cuts, BBP alone: delta^2 = noise/(2a) = theta^2 of Bayes-optimal learning
    assert asx.thresholds(asx.BayesOptimal(ZERO_BULK), progress=False).outlier.item() == pytest.approx(1 / 16)


def test_an_outlier_dissolves_at_interpolation_and_comes_back() -> None:
    """Full learner, linear attention: delta is known in closed form on both sides of a = 2 L alpha = 1."""
    spiked, noise = asx.Spiked(MP, (6.0,)), 0.5
    task = asx.AttentionIndex(1, spiked, noise, activation="linear")
    limits = asx.thresholds(asx.RiskMinimization(task, 0.0, parameterization="full"), progress=False)
    square, Q0 = float(critical_width(spiked)[0]) ** 2, spiked.mean_square
    for name in ("outlier", "outlier_until"):
        a = 2 * limits[name].item()
        assert (Q0 * (1 - a) + noise / (2 * (1 - a))) / a == pytest.approx(square, rel=1e-9)
    # above it delta^2 = noise / (2 (a - 1)), from an iteration to 1e-11
    assert 2 * limits.outlier_again.item() == pytest.approx(1 + noise / (2 * square), rel=1e-9)


@pytest.mark.parametrize(("theta", "noise"), [(4.2, 0.5), (4.3, 0.5), (6.0, 2.0)])
def test_a_factorised_learner_sees_it_dissolve_too(theta: float, noise: float) -> None:
    """A spike close to the bulk, of edge 4.12: delta falls to 1.52, peaks at 2.29 at interpolation, and falls again.

    With more noise, from 2.80 to 5.31, farther spikes dissolve too.
    """
    spiked = asx.Spiked(MP, (theta,))
    problem = asx.RiskMinimization(asx.AttentionIndex(1, spiked, noise, activation="linear"), 0.0)
    limits = asx.thresholds(problem, progress=False)
    found = [limits[name].item() for name in ("outlier", "outlier_until", "outlier_again")]
    assert found == sorted(found)
    assert found[1] < limits.interpolation.item() < found[2]
    # delta is that of the spike at all three, of the closed equations below interpolation and of the solver above
    at = asx.solve(problem, alpha=found, progress=False)
    assert at.delta.values == pytest.approx(np.full(3, critical_width(spiked)[0]), rel=1e-8)
    # fractions of the distance between the changes, before the first, between them and after the last
    points = [0.9 * found[0], np.mean(found[:2]), limits.interpolation.item(), 1.1 * found[2]]
    visible = asx.solve(problem, alpha=points, progress=False).outliers().visible
    assert visible.values.ravel().tolist() == [False, True, False, True]


def test_on_a_zero_bulk_every_outlier_dissolves_at_interpolation() -> None:
    """Noise alone, no decay: delta^2 (a - j(c)) = noise/2 with D(c) = a, and noise/(2a - 1) beyond a = 1/2.

    j and D are the integrals of (x - c)^2 and (x - c) x over the unit semicircle above c = eps/delta; both tend to 1/2
    as c vanishes, where delta diverges.
    """

    def semicircle(x: float) -> float:
        return np.sqrt(4 - x**2) / (2 * np.pi)

    spikes, noise = (3.0, 2.0), 1.0
    task = asx.AttentionIndex(1, asx.Spiked(None, spikes), noise, activation="linear")
    problem = asx.RiskMinimization(task, 0.0)
    limits = asx.thresholds(problem, progress=False)
    first, until, again = (limits[name].values for name in ("outlier", "outlier_until", "outlier_again"))
    assert 2 * again[0] == pytest.approx(0.5 + noise / (2 * spikes[0] ** 2), rel=1e-9)
    # the least delta below interpolation is 2.14: the smaller spike appears beyond it only
    assert 2 * first[1] == pytest.approx(0.5 + noise / (2 * spikes[1] ** 2), rel=1e-9)
    for alpha in (first[0], until[0]):
        theory = asx.solve(problem, alpha=alpha, progress=False)
        assert theory.ok
        c = float(theory.eps / theory.delta)
        j, D = (quad(lambda x, k=k, c=c: (x - c) ** k * x ** (2 - k) * semicircle(x), c, 2)[0] for k in (2, 1))
        assert pytest.approx(2 * alpha, rel=1e-7) == D
        assert spikes[0] ** 2 * (2 * alpha - j) == pytest.approx(noise / 2, rel=1e-7)


@pytest.mark.parametrize("activation", ["linear", "softmax"])
@pytest.mark.parametrize("parameterization", ["factorized", "full"])
def test_an_interpolator_of_noise_alone_has_numbers(activation: str, parameterization: str) -> None:
    """A target of zeros: no share of Q_0 = 0 is divided by; with a full S delta^2 = noise/(2 a (1 - a))."""
    task = asx.AttentionIndex(2, asx.Spiked(None, (3.0,)), 1.0, activation=activation)
    problem = asx.RiskMinimization(task, 0.0, parameterization=parameterization)
    theory = asx.solve(problem, alpha=0.05, progress=False)
    assert theory.ok
    assert float(theory.m) == pytest.approx(0, abs=1e-12)
    assert float(theory.excess_error) > 0
    if parameterization == "full":
        a = 2 * task.visible_directions * 0.05
        assert float(theory.delta) ** 2 == pytest.approx(0.5 / (a * (1 - a)))
    if activation == "linear":
        assert asx.thresholds(problem, progress=False).ok


def test_farther_from_the_bulk_it_stays() -> None:
    """Beyond a critical width of 2.29, that of the peak of delta, nothing dissolves in a factorised learner."""
    problem = asx.RiskMinimization(asx.AttentionIndex(1, asx.Spiked(MP, (4.4,)), 0.5, activation="linear"), 0.0)
    limits = asx.thresholds(problem, progress=False)
    assert np.isinf(limits.outlier_until.item())
    peak = asx.solve(problem, alpha=limits.interpolation.item(), progress=False).delta.item()
    assert peak < critical_width(problem.model.target)[0]


def test_a_full_learner_without_noise_recovers_at_the_end_of_its_window() -> None:
    """No noise, no decay: delta is zero at 2 N alpha = 1, and delta^2 = Q_0 (1 - a)/a before."""
    spiked = asx.Spiked(MP, (6.0,))
    task = asx.AttentionIndex(1, spiked, activation="linear")
    limits = asx.thresholds(asx.RiskMinimization(task, 0.0, parameterization="full"), progress=False)
    assert limits.ok
    a = 2 * limits.outlier.item()
    assert spiked.mean_square * (1 - a) / a == pytest.approx(float(critical_width(spiked)[0]) ** 2, rel=1e-9)
    assert np.isinf(limits.outlier_until).all()


def test_a_narrow_learner_has_no_outlier_for_which_it_has_no_column() -> None:
    """One column in a hundred dimensions: the larger of two spikes is learned, at however many samples."""
    task = asx.AttentionIndex(1, asx.Spiked(MP, (9.0, 6.0), dim=100), 0.5, activation="linear")
    theory = asx.solve(asx.RiskMinimization(task, 0.1, width_ratio=0.01), alpha=[0.5, 50.0], progress=False)
    found = theory.outliers()
    assert found.detached.all()
    assert found.visible.values.tolist() == [[True, False], [True, False]]
    assert (found.eigenvalue.isel(spike=1) == 0).all()
    assert (found.overlap.isel(spike=1) == 0).all()
    two = asx.solve(asx.RiskMinimization(task, 0.1, width_ratio=0.02), alpha=0.5, progress=False).outliers()
    assert two.visible.all()


@pytest.mark.slow
def test_thresholds_of_a_narrow_learner_without_decay_are_its_own() -> None:
    """Where W has a tenth of the columns, delta is not that of the interpolator of least trace."""
    task = asx.AttentionIndex(1, asx.Spiked(MP, (6.0,)), 0.5, activation="linear")
    narrow = asx.RiskMinimization(task, 0.0, width_ratio=0.1)
    limit = asx.thresholds(narrow, which="outlier", progress=False).outlier.item()
    at = asx.solve(narrow, alpha=limit, progress=False)
    # x_m lies below the edge that the outlier leaves
    assert at.delta.item() == pytest.approx(float(critical_width(task.target)[0]), rel=1e-6)


def test_laws_without_spikes_have_no_outliers() -> None:
    problem = asx.RiskMinimization(asx.AttentionIndex(2, MP, noise=0.5, activation="linear"), 0.05)
    assert "outlier" not in asx.thresholds(problem, progress=False).ds
    with pytest.raises(ValueError, match="which must be one of"):
        asx.thresholds(problem, which="outlier", progress=False)
    with pytest.raises(ValueError, match="target has no spikes"):
        asx.solve(problem, alpha=0.3, progress=False).outliers()
