"""The problem as users write it: other losses and penalties, derivatives, spectra, bad input, files."""

import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.loss.quadrature_nodes import LossNodes
from asymptotix.core.status import Status

TASK = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)


def solve(problem, alpha: float | list[float] = 1.0, **options):
    return asx.solve(problem, alpha=alpha, progress=False, **options)


# -- any loss, any penalty -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_own_loss_equals_the_built_in_one():
    def squared(y, h):
        difference = jnp.exp(h) / jnp.exp(h).sum(-1, keepdims=True) - y
        return (difference**2).sum()

    own, built_in = solve(asx.RiskMinimization(TASK, loss=squared)), solve(asx.RiskMinimization(TASK))
    for name in ("test_error", "train_error", "m", "q", "train_loss"):
        assert abs(float(own[name] - built_in[name])) < 4 * float(own[f"{name}_err"]) + 1e-4 * float(built_in[name])
    assert abs(float(own.potential - own.train_loss)) < 1e-8


@pytest.mark.slow
def test_cross_entropy_never_jumps_and_obeys_the_identities():
    problem = asx.RiskMinimization(TASK, loss="cross_entropy", weight_decay=0.05)
    found = solve(problem, alpha=0.5)
    assert found.ok
    assert float(found.jump_weight) == 0
    assert abs(float(found.potential - found.train_loss)) < 1e-8
    assert float(found.train_error) < float(found.test_error)


def test_cross_entropy_of_a_learner_that_stays_at_zero():
    found = solve(asx.RiskMinimization(TASK, loss="cross_entropy", weight_decay=3.0), alpha=0.1)
    assert found.status.item().startswith("converged: the penalty keeps S at zero")
    assert float(found.test_error) == pytest.approx(2 * np.log(2), abs=3 * float(found.test_error_err))  # two rows


@pytest.mark.slow
def test_own_penalty_equals_the_built_in_ones():
    for parameterization, penalty in (("factorized", lambda t: t), ("full", lambda t: t**2)):
        built_in = solve(asx.RiskMinimization(TASK, parameterization=parameterization))
        own = solve(asx.RiskMinimization(TASK, parameterization=parameterization, penalty=penalty))
        for name in ("test_error", "m", "q", "Sigma", "train_loss", "rank", "replicon"):
            assert float(own[name]) == pytest.approx(float(built_in[name]), rel=1e-6), (parameterization, name)


def test_a_penalty_between_the_two():
    mixed = asx.RiskMinimization(TASK, penalty=lambda t: t + 0.5 * t**2)
    found = solve(mixed)
    assert found.ok
    assert abs(float(found.potential - found.train_loss)) < 1e-8
    with pytest.raises(ValueError, match="penalty of your own"):
        found.spectrum()


@pytest.mark.slow
def test_linear_attention_in_closed_form():
    task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5, activation="linear")
    closed = solve(asx.RiskMinimization(task, parameterization="full"), alpha=2.0)
    generic = asx.RiskMinimization(task, parameterization="full", loss=lambda y, h: ((y - h) ** 2).sum())
    found = solve(generic, alpha=2.0)
    for name in ("test_error", "m", "q"):
        # the spread of four randomisations, and what is left of it where they happen to agree
        assert abs(float(found[name] - closed[name])) < 5 * float(found[f"{name}_err"]) + 1e-3 * abs(
            float(closed[name])
        )


# -- derivatives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["weight_decay", "noise", "alpha", "kappa0"])
def test_gradient_against_finite_differences(field):
    problem = asx.RiskMinimization(TASK, weight_decay=0.02)
    at = {"weight_decay": 0.02, "noise": 0.5, "alpha": 1.0, "kappa0": 0.5}[field]
    step = 2e-3 * at

    def value(shifted: float) -> float:
        from asymptotix.core.specification import with_fields

        alpha = shifted if field == "alpha" else 1.0
        other = problem if field == "alpha" else with_fields(problem, **{field: shifted})
        return other.theory.equations.evolution(LossNodes(order=28)).solve(alpha, tolerance=1e-11).averages.test

    found = asx.gradient(problem, "test_error", field, alpha=1.0)
    expected = (value(at + step) - value(at - step)) / (2 * step)
    # differences of solutions known to 1e-11 over 4e-3, and the square of the step times a third derivative
    assert found.derivative == pytest.approx(expected, rel=2e-5)
    assert found.value == pytest.approx(float(solve(problem).test_error), rel=1e-7)


def test_a_derivative_says_what_solve_says():
    narrow = asx.RiskMinimization(TASK, width_ratio=0.3)
    found = asx.gradient(narrow, "test_error", "weight_decay", alpha=1.0)
    assert "narrow: heuristic" in found.words
    with pytest.warns(asx.ConvergenceWarning, match="beyond the tolerance of 1e-07"):
        found = asx.gradient(asx.RiskMinimization(TASK), "m", "noise", alpha=1.0, tolerance=1e-7)
    assert found.status is Status.INACCURATE
    with pytest.raises(ValueError, match=r"nothing to differentiate at alpha=0.1: converged: interpolation"):
        asx.gradient(asx.RiskMinimization(TASK, weight_decay=0), "test_error", "alpha", alpha=0.1)


@pytest.mark.slow
def test_optimal_weight_decay():
    best = asx.optimum(
        asx.RiskMinimization(TASK), "test_error", "weight_decay", bounds=(0.01, 0.3), alpha=1.0, tolerance=0.05
    )
    assert best.inside
    for other in (0.8 * best.at, 1.25 * best.at):
        assert float(solve(asx.RiskMinimization(TASK, weight_decay=other)).test_error) > best.value


def test_gradient_names_what_is_wrong():
    problem = asx.RiskMinimization(TASK)
    with pytest.raises(ValueError, match=r"observable must be one of .*test_error.*'risk'"):
        asx.gradient(problem, "risk", "weight_decay", alpha=1.0)
    with pytest.raises(ValueError, match=r"field must be alpha or one of .*'tokens'"):
        asx.gradient(problem, "test_error", "tokens", alpha=1.0)
    with pytest.raises(TypeError, match="controls alpha"):
        asx.gradient(problem, "test_error", "weight_decay")
    with pytest.raises(NotImplementedError, match="BayesOptimal has no derivatives"):
        asx.gradient(asx.BayesOptimal(TASK), "test_error", "noise", alpha=1.0)


# -- spectra, files ------------------------------------------------------------------------------------------


def test_spectrum_carries_the_order_parameters():
    theory = solve(asx.RiskMinimization(TASK), alpha=[0.2, 1.0])
    with pytest.raises(ValueError, match="select alpha"):
        theory.spectrum()
    for alpha in (0.2, 1.0):
        point = theory.sel(alpha=alpha)
        law = point.spectrum()
        rho = np.linspace(0, 4, 40_001)[1:]
        density = law.singular_value_density(rho) * (rho[1] - rho[0])
        assert law.rank == pytest.approx(float(point.rank), rel=1e-9)
        assert density.sum() == pytest.approx(law.rank, rel=1e-4)
        assert (density * rho**4).sum() == pytest.approx(float(point.q), rel=1e-4)  # Tr S^2 / d


def test_save_and_load(tmp_path):
    pytest.importorskip("h5netcdf")
    theory = solve(
        asx.RiskMinimization(asx.AttentionIndex(target=asx.Atoms((0.0, 1.0), (0.5, 0.5)), noise=0.1)), alpha=[0.5, 1.0]
    )
    theory.save(tmp_path / "curve.nc")
    again = asx.load(tmp_path / "curve.nc")
    assert again.problem == theory.problem
    assert again.sel(alpha=1.0).spectrum().rank == theory.sel(alpha=1.0).spectrum().rank


def test_fields_of_model_and_target_are_controls():
    theory = solve(asx.RiskMinimization(TASK), alpha=1.0, noise=[0.2, 0.5], kappa0=[0.3, 0.5])
    assert theory.test_error.dims == ("noise", "kappa0")
    assert float(theory.test_error.sel(noise=0.5, kappa0=0.5)) == pytest.approx(0.10198, abs=1e-5)


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: asx.AttentionIndex(noise=-0.1), "noise must be .*-0.1"),
        (lambda: asx.MarchenkoPastur(0.0), "kappa0 must be .*0"),
        (lambda: asx.MarchenkoPastur(-1), "kappa0 must be .*-1"),
        (lambda: asx.AttentionIndex(tokens=1), "tokens must be at least 2 with activation='softmax'"),
        (lambda: asx.AttentionIndex(activation="relu"), "activation must be .*softmax.*'relu'"),
        (lambda: asx.AttentionIndex(beta=0), "beta must be"),
        (lambda: asx.Empirical(()), "spectrum"),
        (lambda: asx.Atoms((), ()), "values"),
        (lambda: asx.RiskMinimization(TASK, weight_decay=-1), "weight_decay must be"),
        (lambda: asx.RiskMinimization(TASK, width_ratio=0), "width_ratio must be"),
        (lambda: asx.RiskMinimization(TASK, parameterization="tied"), "parameterization must be .*'tied'"),
        (lambda: solve(asx.RiskMinimization(TASK), alpha=-1.0), "alpha must be"),
        (lambda: solve(asx.RiskMinimization(TASK), start=[1.0, 0.1, 1.0]), r"start must be \(m, q, Sigma\)"),
    ],
)
def test_bad_input_names_the_argument(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_what_is_not_covered_is_said():
    with pytest.raises(NotImplementedError, match="squared loss without a penalty"):
        asx.thresholds(asx.RiskMinimization(TASK, penalty=lambda t: t**2), progress=False)
    with pytest.raises(ValueError, match="weight_decay > 0"):
        asx.simulate(asx.RiskMinimization(TASK, weight_decay=0), asx.MatrixAMP(), alpha=0.1, dim=10, seeds=1)
    with pytest.raises(ValueError, match="cross_entropy"):
        asx.RiskMinimization(asx.AttentionIndex(activation="linear"), loss="cross_entropy")
    with pytest.raises(ValueError, match="one column of W"):
        asx.simulate(asx.RiskMinimization(TASK, width_ratio=0.01), asx.Adam(), alpha=0.5, dim=30, seeds=1)


def test_wrong_types():
    with pytest.raises(TypeError, match="target must be a Target"):
        asx.AttentionIndex(target=0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model must be an AttentionIndex"):
        asx.RiskMinimization(asx.DeepAttention(1, 2))  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="hardmax"):
        asx.RiskMinimization(asx.AttentionIndex(activation="hardmax"))
