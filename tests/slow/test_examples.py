"""Every example runs, and says what it promises."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_other_losses(capsys):
    runpy.run_path(str(EXAMPLES / "other_losses.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("converged") == 8
    assert "nan" not in printed


def test_gradient_descent(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "gradient_descent.py"))["main"](epochs=30, dim=100)
    printed = capsys.readouterr().out
    assert printed.startswith("layer 2: cosine 0.9")  # the second layer is learned at once, the first later
    assert (tmp_path / "gradient_descent.png").stat().st_size > 10_000
