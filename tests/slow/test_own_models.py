"""The examples on the pages about models of one's own run, print what the pages say, and are right."""

import runpy
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

import asymptotix as asx
from asymptotix.numerics.quadrature import gauss_hermite
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager

pytestmark = pytest.mark.slow

OWN = Path(__file__).parents[2] / "docs" / "own"


def printed_by(name: str, capsys) -> str:
    runpy.run_path(str(OWN / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def block(name: str) -> str:
    """What the page shows as printed."""
    page = (OWN / f"{name}.md").read_text(encoding="utf-8")
    return page.partition("```\n")[2].partition("It prints")[2].partition("```\n")[2].partition("```")[0].strip()


def overlap_of_noisy_signs(alpha: float, noise: float) -> float:
    """Fixed point of q/(1-q) = alpha E[g^2] for labels sign(z + sqrt(noise) n), by Gauss-Hermite quadrature."""
    nodes, weights = gauss_hermite(200, 1)

    def excess(q: float) -> float:
        t = np.sqrt(q / (1 - q + noise)) * nodes[:, 0]  # labels of both signs contribute alike
        g = np.exp(-0.5 * t**2 - log_ndtr(t)) / np.sqrt(2 * np.pi * (1 - q + noise))
        return 2 * alpha * float(weights @ (ndtr(t) * g**2)) - q / (1 - q)

    found: Any = brentq(excess, 1e-3, 0.999)
    return found


def test_link(capsys):
    assert printed_by("link", capsys).strip() == block("link")


def test_channel(capsys):
    """It prints what is shown, and without noise it is the sign of an index, of which the package has a quadrature."""
    names = runpy.run_path(str(OWN / "channel.py"), run_name="__main__")
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert printed == [line.rstrip() for line in block("channel").splitlines()]
    noisy = asx.solve(asx.BayesOptimal(names["NoisyPerceptron"](noise=0.1)), alpha=1.0, tolerance=1e-3, progress=False)
    assert abs(noisy.overlap.item() - overlap_of_noisy_signs(1.0, 0.1)) <= 3 * noisy.overlap_err.item()
    noisy_problem = asx.BayesOptimal(names["NoisyPerceptron"](noise=0.1))
    runs = asx.simulate(noisy_problem, asx.GAMP(), alpha=1.0, dim=1000, seeds=8, progress=False).overlap.values.ravel()
    assert abs(runs.mean() - noisy.overlap.item()) <= 4 * runs.std(ddof=1) / np.sqrt(8)  # t with 7 degrees: 1 in 200
    models = names["NoisyPerceptron"](noise=0.0), asx.MultiIndex(lambda z: jnp.sign(z[0]), indices=1)
    own, known = (
        asx.solve(asx.BayesOptimal(model), alpha=[0.5, 2.0], tolerance=1e-3, progress=False) for model in models
    )
    assert (abs(own.overlap - known.overlap) <= 3 * (own.overlap_err + known.overlap_err)).all()
    assert own.overlap_err.max() < 2e-3  # twice the tolerance
    # On the same nodes rounding is what is left.
    channels = (asx.BayesOptimal(model).theory.channel for model in models)
    averages = [QuasiRandomAverager(channel, 2**8, 2)(0.4 * np.eye(1)) for channel in channels]
    for one, other in zip(*averages, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


def test_theory(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", asx.ConvergenceWarning)
        printed = printed_by("theory", capsys)
    assert printed.count("estimation_error") >= 3
    assert "6 of 6 points ok" in printed
