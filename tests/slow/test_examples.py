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
