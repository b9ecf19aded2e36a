"""Verdicts follow from numbers."""

from __future__ import annotations

import numpy as np
import pytest

from asymptotix import compare, simulate, solve
from asymptotix.figures.making.record import Agreement, Claim, Findings, agreement
from toy import ToyLearning, ToyRegression, ToyRun


def test_verdicts():
    assert Claim("a", "1", "text", "1", np.bool_(False)).holds is False  # pyright: ignore[reportArgumentType]
    right, wrong = Claim("a", "1", "text", "1", True), Claim("b", "2", "text", "3", False)
    assert Findings().verdict == "new: nothing was published"
    assert Findings(claims=[right]).verdict == "1 of 1 published claims confirmed"
    assert Findings(claims=[right, wrong, wrong]).verdict == "1 of 3 published claims confirmed, 2 not confirmed"
    unknown = Claim("c", "3", "text", "3 ± 2", None)
    assert Findings(claims=[right, unknown]).verdict == "1 of 2 published claims confirmed, 1 not decided"
    neither = Findings(claims=[wrong, unknown]).verdict
    assert neither == "0 of 2 published claims confirmed, 1 not confirmed, 1 not decided"


def test_agreement_counts_points_with_errors_and_knows_the_trend():
    problem = ToyLearning(ToyRegression(indices=1, noise=0.5))
    alphas = [0.2, 0.4, 0.8]
    theory = solve(problem, alpha=alphas, progress=False)
    runs = simulate(problem, ToyRun(), alpha=alphas, dim=[50, 200], seeds=8, progress=False)
    comparison = compare(theory, runs)
    found = agreement("overlap", comparison, "overlap", index=0, index_other=0)
    z = comparison.ds["overlap_z"].isel(index=0, index_other=0, dim=-1).values
    assert found.points == 3
    assert found.chi2 == pytest.approx((z**2).sum())
    assert found.largest == pytest.approx(abs(z).max())
    assert set(found.distances) == {50, 200}
    mean, error = found.distances[200]
    theory_mean = np.mean([problem.expected(alpha) for alpha in alphas])
    means = problem.comparable(runs.ds).overlap.isel(index=0, index_other=0, dim=1).mean("seed").values
    assert mean == pytest.approx((means.mean() - theory_mean) / theory_mean)
    assert error > 0


@pytest.mark.parametrize(
    ("chi2", "distances", "words"),
    [
        (10.0, {}, "within errors"),
        (100.0, {}, "beyond errors; one size only, so that its trend is not known"),
        (100.0, {50: (0.08, 0.01), 100: (0.02, 0.01)}, "beyond errors, and closer the larger the system"),
        (100.0, {50: (0.03, 0.01), 100: (0.02, 0.01)}, "beyond errors, without a clear trend in the size"),
    ],
)
def test_what_is_said_of_a_curve(chi2, distances, words):
    assert Agreement("x", 10, chi2, 3.0, distances).words == words
