"""The examples on the pages about models of one's own run, print what the pages say, and are right."""

import runpy
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
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


def test_link(capsys):
    assert printed_by("link", capsys).strip() == block("link")


def test_channel(capsys):
    """It prints what is shown, and without noise it is the sign of an index, of which the package has a quadrature."""
    names = runpy.run_path(str(OWN / "channel.py"), run_name="__main__")
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert printed == [line.rstrip() for line in block("channel").splitlines()]
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
