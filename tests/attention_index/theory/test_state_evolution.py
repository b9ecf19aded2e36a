"""State evolution of training against independent calculations, and the identities that it must obey."""

import warnings

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.loss.quadrature_nodes import LossNodes
from asymptotix.attention_index.theory.training_observables import observables
from asymptotix.attention_index.theory.training_states import OrderParameters
from reference_numbers import reference

REFERENCE = reference("attention_index")
CURVES = REFERENCE["state_evolution"]
NAMES = {
    "m": "m", "q": "q", "Sigma": "Sigma", "mhat": "mhat", "qhat": "qhat", "Sigmahat": "Sigmahat",
    "test": "test_error", "train": "train_error", "loss": "train_loss", "rank": "rank",
}  # fmt: skip


def problem_of(name: str) -> asx.RiskMinimization:
    given = CURVES[name]["params"]
    model = asx.AttentionIndex(
        tokens=given.get("T", 2),
        target=asx.MarchenkoPastur(given["k0"]),
        noise=given["Delta"],
        beta=given.get("beta", 1.0),
        target_beta=given.get("beta0"),
    )
    full = given.get("mode") == "nonfact"
    return asx.RiskMinimization(
        model,
        weight_decay=given["lam"],
        width_ratio=given.get("kappa", 1.0),
        parameterization="full" if full else "factorized",
    )


def assert_close(found, row, *, own_error=True):
    for ours, name in ((NAMES[key], key) for key in NAMES if key in row):
        allowed = max(3 * row["err"].get(name, 0.0), 1e-4 * abs(row[name]))
        if own_error:
            allowed = max(allowed, 3 * float(found[f"{ours}_err"]))
        assert abs(float(found[ours]) - row[name]) < allowed, (
            row["alpha"],
            name,
            float(found[ours]),
            row[name],
            allowed,
        )


HARD = ("fact_T2_k0.5_lam1e-3_D0.5", "fact_T2_k0.5_lam1e-4_D0.5")  # small weight decay around interpolation
TWO_TOKENS = [
    pytest.param(name, marks=pytest.mark.slow) if name in HARD else name
    for name, curve in CURVES.items()
    if curve["params"].get("T", 2) == 2 and not name.endswith("beta2")
]


@pytest.mark.parametrize("name", TWO_TOKENS)
def test_two_tokens_against_reference(name):
    """Within 3 err or 1e-4 where the proximal map is smooth on 99.99 % of the data.

    Elsewhere two quadrature orders, whose difference is the error stated in the reference, may agree by chance: there
    the reference's own rule must give its numbers, and ours must agree with them within its own error.
    """
    rows = [row for row in CURVES[name]["points"] if row["resid"] < 1e-7]
    problem = problem_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asx.ConvergenceWarning)
        theory = asx.solve(problem, alpha=[row["alpha"] for row in rows], progress=False)
    for position, row in enumerate(rows):
        found = theory.isel(alpha=position)
        jumps = float(found.jump_weight) > 1e-4
        if not jumps:
            assert_close(found, row, own_error=False)
        else:
            start = OrderParameters(row["m"], row["q"], row["Sigma"])
            assert_close(found, row)
            evolution = problem.theory.equations.evolution(LossNodes(order=28))
            again = evolution.solve(row["alpha"], start, tolerance=1e-9)
            values = observables(problem, row["alpha"], again, evolution)
            # The reference stopped at a residual of 1e-9 to 1e-7 in the logarithms. With jumps on more than a hundredth
            # of the nodes the map is discontinuous and has many fixed points close to each other.
            allowed = 2e-5 if again.averages.jump_weight < 1e-2 else 1e-2
            for key, ours in NAMES.items():
                assert abs(values[ours] / row[key] - 1) < allowed, (row["alpha"], key)
        assert abs(float(found.potential - found.train_loss)) < 1e-8 or not bool(found.ds["converged"])


def test_three_tokens_against_reference():
    row = next(row for row in CURVES["fact_T3_k0.5_lam0.01_D0.5"]["points"] if row["alpha"] == 0.5)
    assert_close(asx.solve(problem_of("fact_T3_k0.5_lam0.01_D0.5"), alpha=0.5, progress=False), row)


def test_atomic_target_against_reference():
    given = REFERENCE["atoms_target_se"]
    values, weights = zip(*given["atoms"], strict=True)
    problem = asx.RiskMinimization(asx.AttentionIndex(target=asx.Atoms(values, weights), noise=0.5))
    assert_close(asx.solve(problem, alpha=0.5, progress=False), {"err": {}} | given["se"])


@pytest.mark.parametrize("parameterization", ["factorized", "full"])
def test_potential_is_stationary_in_all_six_parameters(parameterization):
    problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), parameterization=parameterization)
    alpha, evolution = 1.0, problem.theory.equations.evolution(LossNodes(order=24))
    state = evolution.solve(alpha, tolerance=1e-11)

    def potential(logs: np.ndarray) -> float:
        m, q, Sigma, mhat, qhat, Sigmahat = np.exp(logs)
        averages = evolution.loss(evolution.noisy_signal, m, q, Sigma, multi_start=False)
        envelope = evolution.penalty.estimate(evolution.target, mhat, qhat, Sigmahat).envelope
        return 0.25 * (qhat * Sigma + 2 * mhat * m - Sigmahat * q) + alpha * averages.moreau + envelope

    at = np.log([*state.parameters, *state.fields])
    step = 1e-4
    for unit in np.eye(6):
        slope = (potential(at + step * unit) - potential(at - step * unit)) / (2 * step)
        assert abs(slope) < 2e-6  # the terms are of order one; differences leave step^2 and 1e-12 / step
        off = at + 0.05 * (1 + unit)
        moved = (potential(off + step * unit) - potential(off - step * unit)) / (2 * step)
        assert abs(moved) > 1e-4  # and it is not stationary elsewhere


def test_replicon_against_reference():
    rows = [row for row in REFERENCE["replicon"] if row["curve"] == "fact_T2_k0.5_lam0.01_D0.5"]
    theory = asx.solve(problem_of(rows[0]["curve"]), alpha=[row["alpha"] for row in rows], progress=False)
    for position, row in enumerate(rows):
        found = theory.isel(alpha=position)
        # The reference integrates over pairs of eigenvalues without a cut at the kink, which leaves some 1e-3: its
        # own check of the divergence by the same rule is off by up to 2e-4.
        assert abs(float(found.replicon) / row["replicon_ae"] - 1) < 2e-3 + 3 * float(found.replicon_err)


def test_squared_response_by_two_rules():
    from asymptotix.attention_index.penalties.spectral_estimate import NuclearNorm, SpectralPenalty

    target, delta, eps = asx.MarchenkoPastur(0.5), 0.6, 0.15
    convolution = target.convolution(delta)
    # The divergence, a double integral of the same kind, is known as a single one.
    x, w, h = convolution.nodes(eps)
    assert abs(convolution.moments(eps).divergence - 2 * (w * (x - eps)) @ h) < 1e-12
    own = SpectralPenalty(lambda t: 0.5 * eps * t, lambda t: np.full_like(t, 0.5 * eps), np.zeros_like)
    found = own.squared_response(target, 1.0, delta**2, 1.0)
    # mass^2 from pairs above the cut; from mixed pairs (x-eps)^2 int_{y<eps} mu/(x-y)^2, here on a fine uniform rule.
    ends = convolution.edges
    y = np.linspace(ends[0, 0], eps, 400_001)
    y = 0.5 * (y[1:] + y[:-1])
    below = convolution.density(y) * (y[1] - y[0])
    mixed = sum(wi * (xi - eps) ** 2 * (below / (xi - y) ** 2).sum() for xi, wi in zip(x, w, strict=True))
    assert abs(found - (w.sum() ** 2 + 2 * mixed)) < 3e-4 * found  # the midpoint rule at x -> eps
    assert NuclearNorm(0.5 * eps).squared_response(target, 1.0, delta**2, 1.0) == pytest.approx(found)


def test_temperatures_only_rescale_the_estimate():
    mismatched = asx.RiskMinimization(asx.AttentionIndex(noise=0.5, beta=2.0, target_beta=1.0), weight_decay=0.01)
    matched = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.005)
    a, b = (asx.solve(problem, alpha=1.0, progress=False) for problem in (mismatched, matched))
    assert float(a.test_error) == pytest.approx(float(b.test_error), rel=1e-7)
    assert float(a.m) == pytest.approx(0.5 * float(b.m), rel=1e-7)


def test_width_enters_through_the_weight_decay_alone():
    model = asx.AttentionIndex(noise=0.5)
    a = asx.solve(asx.RiskMinimization(model, weight_decay=0.02, width_ratio=1.0), alpha=1.0, progress=False)
    b = asx.solve(asx.RiskMinimization(model, weight_decay=0.01, width_ratio=4.0), alpha=1.0, progress=False)
    assert float(a.test_error) == pytest.approx(float(b.test_error), rel=1e-7)


@pytest.mark.slow
def test_jumps_of_the_proximal_map_are_never_silent():
    problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=1e-3)
    with pytest.warns(asx.ConvergenceWarning, match="proximal map jumps"):
        theory = asx.solve(problem, alpha=0.25, progress=False)
    assert not theory.ok
    assert 1e-3 < float(theory.jump_weight) < 0.05
    assert 0.27 < float(theory.test_error) < 0.30  # a number is given all the same; 0.2825(7) in the reference


def test_a_learner_narrower_than_its_rank_is_told_so():
    problem = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), width_ratio=0.3)
    theory = asx.solve(problem, alpha=1.0, progress=False)
    assert theory.ok
    assert "narrow: heuristic: width_ratio = 0.3 leaves out" in theory.status.item()
    assert "the cut lies inside a bulk, where the replicon diverges" in theory.status.item()
    assert float(theory["rank"]) == pytest.approx(0.3, abs=1e-9)


def test_little_data_leaves_little_of_the_matrix():
    # The plain iteration lands on S = 0 here, which is not the solution: the fields there do lift it.
    theory = asx.solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5)), alpha=[1e-3, 4e-3, 0.016], progress=False)
    assert theory.ok
    assert (np.diff(theory.q) > 0).all()
    assert (np.diff(theory["rank"]) > 0).all()
    np.testing.assert_allclose(theory.potential, theory.train_loss, rtol=1e-6)


def test_strong_weight_decay_keeps_the_matrix_at_zero():
    theory = [
        asx.solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=value), alpha=0.5, progress=False)
        for value in (0.7, 1.0, 2.0)
    ]
    ranks = [float(point["rank"]) for point in theory]
    assert ranks[0] > ranks[1] > ranks[2] == 0
    assert "keeps S at zero" in theory[2].status.item()
    assert float(theory[2].test_error) > float(theory[1].test_error)
    assert float(theory[2].estimation_error) == 1.5


def test_narrow_learners_are_told_so_at_vanishing_weight_decay_too():
    narrow = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0, width_ratio=0.2)
    theory = asx.solve(narrow, alpha=0.1, progress=False)
    assert "narrow: heuristic: width_ratio = 0.2 leaves out" in theory.status.item()
