"""Figures of deep attention whose theory or runs take seconds, at tiny sizes, and the scripts of their errata."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from asymptotix.figures import deep

pytestmark = pytest.mark.slow

ERRATA = Path(__file__).parents[2] / "examples" / "errata"


def claims_of(made):
    return {claim.what: claim for claim in made.findings.claims}


def test_two_layers_against_samples():
    made = deep.fig1_left(
        alphas=(0.1, 0.15), simulated=(0.1, 0.6, 0.9, 1.2), dim=(100, 200), seeds=2, iterations=30, tolerance=0.02,
        progress=False,
    )  # fmt: skip
    claims = claims_of(made)
    wrong = [what for what, claim in claims.items() if not claim.holds]
    assert len(wrong) == 4  # both thresholds, the plateau, the Bayes error
    assert float(claims["first threshold, layer 2"].found.split()[0]) == pytest.approx(0.1854779, abs=1e-6)
    bayes = claims["Bayes error, eq. (11), while nothing is learned"]
    assert float(bayes.found.split()[0]) == pytest.approx(0.3030, abs=0.003)
    assert len(made.findings.agreements) == 4
    held, theory = made.results["layer1_held"].ds, made.results["theory"].ds
    assert float(held.plugin_error.sel(alpha=0.9)) > 1.5 * float(theory.plugin_error.sel(alpha=0.9))  # 0.042, 0.023


def test_cosines_along_message_passing():
    made = deep.fig2_top(alpha=1.2, dim=(100, 300), seeds=3, iterations=15, progress=False)
    distances = made.findings.agreements[0].distances
    assert set(distances) == {100, 300}
    assert abs(distances[300][0]) < 0.1  # 2/sqrt(D)


def test_cosines_along_gradient_descent():
    made = deep.fig2_bottom(alpha=15.0, dim=100, seeds=4, epochs=60, progress=False)
    first, second = made.results["sgd"].ds["first_passage"].values.reshape(-1, 2).T
    assert (second < np.nan_to_num(first, nan=np.inf)).all()


def test_one_layer_against_the_other():
    made = deep.fig5(alpha=1.0, held=(0.0, 0.9, 0.99), tolerance=0.02, progress=False)
    assert made.findings.verdict.endswith(" published claims confirmed")
    assert made.datasets["held"].overlap.values == pytest.approx([0.0, 0.0, 0.51], abs=0.03)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("first_threshold", "skip 1: published 0.1436, found 0.185478"),
        ("second_threshold", "skip 4: published 0.196, found 0.72"),
        ("exact_recovery", "state evolution: 1.0000, exact recovery"),
        ("bayes_error", "published as Bayes error: 0.387; found: 0.302"),
        ("algorithm_one", "in stages: 1.000, 1.000"),
        pytest.param("three_layers", "overlap of layer 2 0.0000", marks=pytest.mark.full),
    ],
)
def test_errata(capsys, script, expected):
    runpy.run_path(str(ERRATA / f"{script}.py"), run_name="__main__")
    assert expected in capsys.readouterr().out
