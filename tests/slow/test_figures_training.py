"""Every figure of training at tiny settings: numbers of its record; and the scripts that show what does not hold."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from asymptotix.figures import training

pytestmark = pytest.mark.slow

ERRATA = Path(__file__).parents[2] / "examples" / "errata"
TINY = {"dims": (12, 16), "seeds": 2}


def test_spectra_and_ranks():
    spectra_of = ((0.05, 20, 2), (0.5, 20, 2), (4.0, 12, 2), (40.0, 8, 2))
    made = training.fig1(spectra_of=spectra_of, alphas=(0.2, 0.5), points=5, **TINY)
    np.testing.assert_allclose(made.datasets["spectra"]["zeros_theory"], [0.769, 0.356, 0.282, 0.260], atol=1e-3)
    assert made.datasets["spectra"]["bulks"].values.tolist() == [1, 1, 1, 2]
    assert [claim.holds for claim in made.findings.claims][1:] == [True] * 4
    assert len(made.findings.agreements) == 4


def test_interpolation_peak():
    made = training.fig2(decays=(0.1, 1e-3), alphas=(0.2, 0.5), steps=100, points=12, **TINY)
    assert float(made.results["threshold"].interpolation) == pytest.approx(0.153482, abs=1e-6)
    assert made.results["decay_0_theory"].ds["test_error"].max() > 0.4
    assert made.findings.claims[0].holds
    assert made.findings.claims[1].holds
    assert "unproven" in made.findings.remarks[0]


@pytest.mark.full
def test_factorised_against_full():
    made = training.fig3_left(alphas=(0.2, 0.4), decays=(1e-3, 1e-2), points=2, **TINY)
    best = made.datasets["optimum"]
    assert (best["full_error"] > best["factorized_error"]).all()
    assert made.findings.claims[0].holds
    assert len(made.findings.agreements) == 2


def test_outputs_share_their_data():
    made = training.fig4(alphas=(0.2, 0.5), points=3, **TINY)
    lab, seq = (made.results[f"noise_0.5_{output}_adam"].ds["test_error"] for output in ("label", "sequence"))
    assert abs(seq / lab - 1).max() < 0.3
    assert len(made.findings.claims) == 8


def test_temperatures_turn_around_without_noise():
    made = training.fig5(alphas=(0.2, 0.5), points=6, **TINY)
    quiet, noisy, replicon = made.findings.claims
    assert not quiet.holds
    assert "β = 0.5 is worse than 1" in quiet.found
    assert noisy.holds
    assert replicon.holds is None  # the proximal map jumps there
    assert "β=β₀=2, Δ=0.5" in replicon.found


@pytest.mark.full
def test_tokens():
    made = training.fig6(tokens=(2, 3), alphas=(0.5, 1.0), points=3, **TINY)
    assert not made.findings.claims[0].holds
    errors = [made.results[f"noise_0.5_tokens_{T}_theory"].ds["test_error"].values[-1] for T in (2, 3)]
    assert errors[1] > 1.2 * errors[0]


@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("full_recovery", {"dim": 12}, "library 0.25"),
        ("replicon", {"alphas": (0.8,)}, "beta = 2, alpha = 0.8: 1."),
        ("spectrum_law", {"dim": 20, "seeds": 2}, "alpha = 0.2: published"),
        ("temperatures", {"dim": 16, "seeds": 2}, "theory, alpha = 1: 0.0002609, 0.0002304"),
        ("tokens_rescaled", {"dim": 12, "seeds": 2}, "T = 5: theory 0."),
    ],
)
def test_script(script, options, says, capsys):
    runpy.run_path(str(ERRATA / f"{script}.py"))["main"](**options)
    assert says in capsys.readouterr().out
