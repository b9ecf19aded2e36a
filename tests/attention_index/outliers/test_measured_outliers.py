"""Outliers of experiments, and in the law of the learned spectrum."""

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.algorithms.learned_matrix import spectral_observables

MP = asx.MarchenkoPastur(0.5)


def trained(target: asx.Target, **options) -> asx.RiskMinimization:
    return asx.RiskMinimization(asx.AttentionIndex(2, target, noise=0.5), weight_decay=0.01, **options)


def test_a_learned_matrix_is_matched_to_the_spikes() -> None:
    target = np.array([0.0, 1.0, 5.0, 8.0])
    angle = 0.3  # the direction of 8 is turned towards that of 1; that of 5 is learned with a larger eigenvalue
    turn = np.eye(4)
    turn[[1, 1, 3, 3], [1, 3, 1, 3]] = np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle)
    S = turn.T @ np.diag([0.0, 0.5, 9.0, 7.0]) @ turn
    found = spectral_observables(S, target, (8.0, 5.0))
    assert found["outlier_eigenvalue"] == pytest.approx([7.0, 9.0])
    assert found["outlier_overlap"] == pytest.approx([np.cos(angle) ** 2, 1.0])
    assert "outlier_overlap" not in spectral_observables(S, target)


def test_equal_spikes_are_measured_by_their_eigenspace() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    S = np.zeros((4, 4))
    S[2:, 2:] = turn @ np.diag([4.0, 6.0]) @ turn.T
    found = spectral_observables(S, np.array([0.0, 1.0, 5.0, 5.0]), (5.0, 5.0))
    assert found["outlier_eigenvalue"] == pytest.approx([6.0, 4.0])
    assert found["outlier_overlap"] == pytest.approx([1.0, 1.0])


def test_message_passing_reports_outliers() -> None:
    task = asx.AttentionIndex(2, asx.Spiked(MP, (6.0, 9.0)), noise=0.5, activation="linear")
    problem = asx.RiskMinimization(task, weight_decay=0.05)
    runs = asx.simulate(problem, asx.MatrixAMP(iterations=15), alpha=0.5, dim=40, seeds=2, progress=False)
    found = runs.outliers()
    assert found.overlap.dims == ("seed", "spike")
    assert found.theta.values.tolist() == [9.0, 6.0]
    assert (found.overlap > 0.8).all()
    assert found.singular_value.values == pytest.approx(np.sqrt(found.eigenvalue.values))


def ranked() -> asx.RiskMinimization:
    task = asx.AttentionIndex(1, asx.RankedPowerLaw(1.0, 20), noise=0.5, activation="linear")
    return asx.RiskMinimization(task, weight_decay=0.05)


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")
def test_spikes_of_a_swept_target_are_those_of_each_run() -> None:
    runs = asx.simulate(
        ranked(), asx.MatrixAMP(iterations=3), alpha=0.5, gamma=[1.0, 1.5], dim=20, seeds=1, progress=False
    )
    theta = runs.outliers().theta
    for gamma in (1.0, 1.5):
        assert theta.sel(gamma=gamma).values == pytest.approx(asx.RankedPowerLaw(gamma, 20).ranks(16))


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")
def test_spikes_are_selected_from_the_outliers_and_not_before() -> None:
    runs = asx.simulate(ranked(), asx.MatrixAMP(iterations=3), alpha=0.5, dim=20, seeds=2, progress=False)
    with pytest.raises(ValueError, match="needs all 16 spikes: select from what it returns"):
        runs.isel(spike=[0]).outliers()


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")
@pytest.mark.slow
def test_runs_of_several_sizes_are_compared_with_the_limit() -> None:
    """Spikes of weight zero: the theory has no dim, and stays the same at every size of the experiment."""
    task = asx.AttentionIndex(1, asx.Spiked(MP, (6.0, 9.0)), noise=0.5, activation="linear")
    problem = asx.RiskMinimization(task, weight_decay=0.05)
    theory = asx.solve(problem, alpha=[0.3, 0.5], progress=False)
    runs = asx.simulate(problem, asx.MatrixAMP(iterations=3), alpha=0.5, dim=[20, 30], seeds=2, progress=False)
    assert runs.outliers().overlap.dims == ("dim", "seed", "spike")
    found = asx.compare(theory, runs).ds
    assert found.q_theory.values.ravel() == pytest.approx(float(theory.sel(alpha=0.5).q))
    sized = asx.solve(problem, alpha=0.5, dim=[20, 30], progress=False)
    assert asx.compare(sized, runs).ds.q_theory.values.ravel() == pytest.approx(sized.q.values)


def test_a_spectrum_does_not_count_outliers_as_bulks() -> None:
    with_atoms, without = (
        asx.solve(trained(asx.Spiked(MP, (9.0,), dim=dim)), alpha=0.3, progress=False).spectrum() for dim in (400, None)
    )
    assert with_atoms.bulks == without.bulks == 1
    assert len(with_atoms.convolution.edges) == 2
    # The mass of the outlier is left out of both sides: quantiles of the bulk alone are as close as they can be.
    levels = (np.arange(399) + 0.5) / 399
    grid = np.linspace(0, without.outliers[0], 4000)
    drawn = np.interp(levels, without.singular_value_cdf(grid), grid)
    values = np.append(drawn, np.sqrt(without.outliers[0]))
    assert without.kolmogorov_distance(values) < 2 / 399
    # spikes of weight 1/400 widen the noise of all others by a percent
    assert with_atoms.kolmogorov_distance(values) < 0.03


def test_outliers_are_drawn() -> None:
    import matplotlib

    matplotlib.use("Agg")
    spectrum = asx.solve(trained(asx.Spiked(MP, (6.0, 9.0))), alpha=0.3, progress=False).spectrum()
    ax = spectrum.plot(measured=np.sqrt([spectrum.outliers, spectrum.outliers]))
    dots = [line for line in ax.lines if line.get_label() == "outliers"]
    assert np.asarray(dots[0].get_xdata()) == pytest.approx(np.sqrt(spectrum.outliers))
    assert "measured outliers" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.slow
def test_a_dominant_spike_is_remarked_on() -> None:
    theory = asx.solve(trained(asx.Spiked(MP, (9.0,), dim=60)), alpha=0.3, progress=False)
    assert theory.ok
    assert "one spike carries" in theory.status.item()
    light = asx.solve(trained(asx.Spiked(MP, (9.0,), dim=2000)), alpha=0.3, progress=False)
    assert "spike" not in light.status.item()


@pytest.mark.slow
def test_trained_outliers_are_those_of_the_theory() -> None:
    problem = trained(asx.Spiked(MP, (6.0, 9.0), dim=60))
    theory = asx.solve(problem, alpha=0.2, progress=False).outliers()
    runs = asx.simulate(problem, asx.Adam(), alpha=0.2, dim=60, seeds=4, progress=False).outliers()
    error = runs.eigenvalue.std("seed", ddof=1) / 2
    # beside the standard error of four runs a finite-size bias: three percent and 0.03 at d = 60
    assert (abs(runs.eigenvalue.mean("seed") - theory.eigenvalue) < 3 * error + 0.03 * theory.eigenvalue).all()
    assert (abs(runs.overlap.mean("seed") - theory.overlap) < 0.03).all()
