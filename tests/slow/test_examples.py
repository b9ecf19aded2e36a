"""Every example runs, and says what it promises."""

import math
import re
import runpy
from pathlib import Path

import pytest

from asymptotix import ConvergenceWarning, load

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


def test_hidden_markov(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(ConvergenceWarning, match="raise draws"):  # few, on purpose
        runpy.run_path(str(EXAMPLES / "hidden_markov.py"))["main"](tasks=2, draws=40, widths=(10, 100))
    found = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(found) == 2
    assert min(found) > 5  # the prior's is 1: the good path grows
    assert (tmp_path / "hidden_markov.png").stat().st_size > 10_000


def test_large_systems(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "large_systems.py"))["main"](dims=(100, 200), seeds=2)
    printed = capsys.readouterr().out
    assert printed.count("|q - Q| = 0.") == 2
    assert (tmp_path / "large_systems.png").stat().st_size > 10_000


def test_training_phase_diagram(capsys, monkeypatch, tmp_path):
    """A second call finds all of it in the store."""
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLES / "training_phase_diagram.py"))["main"]
    example(store="store", workers=2, points=3, ranks=1)
    first, log = capsys.readouterr().out, (tmp_path / "store" / "log.jsonl").read_bytes()
    assert re.match(r"(\d+) of \1 chunks done, 0 running, 0 failed, 0 left", first)
    example(store="store", workers=2, points=3, ranks=1)
    assert capsys.readouterr().out == first
    assert (tmp_path / "store" / "log.jsonl").read_bytes() == log
    assert (tmp_path / "training_phase_diagram.png").stat().st_size > 10_000


@pytest.mark.full  # its thresholds and a point of its curve are those of test_depth_three.py, the pictures take longest
def test_depth_three(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = {"alphas": (0.3,), "tolerance": 0.01, "alpha": 0.6, "dim": 40, "seeds": 2, "iterations": 3}
    runpy.run_path(str(EXAMPLES / "depth_three.py"))["main"](**small)
    assert capsys.readouterr().out.count("starts at") == 3
    assert (tmp_path / "depth_three.png").stat().st_size > 10_000
    found = load(tmp_path / "depth_three_thresholds.nc")
    first, second, last = found.weak_recovery.values
    # Known to 0.0003, 0.003 and 0.004 from two sets of nodes with four times the draws; here errors are below 0.01.
    for value, known, error in ((last, 0.2071, 0.001), (first, 0.978, 0.012), (second, 1.125, 0.04)):
        assert abs(value - known) < error
    assert float(found.exact_recovery) == 1.5  # P/r: nothing holds the dynamics up where full overlap is stable


def test_own_link(capsys):
    runpy.run_path(str(EXAMPLES / "own_link.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "learned above alpha = 0.5000, exactly above 1.1" in printed  # exact: 1/2, and between 1.10 and 1.13(4)
    assert "stable above 1.000" in printed
    scores = [float(line.split()[-1]) for line in printed.splitlines() if "overlap[index 1]" in line]
    assert len(scores) == 3
    assert max(map(abs, scores)) < 4  # standard errors of four runs


def test_directions_are_learned_one_by_one(capsys):
    runpy.run_path(str(EXAMPLES / "beyond" / "one_by_one.py"), run_name="__main__")
    over_squares = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert over_squares == sorted(over_squares, reverse=True)  # down to what it is far out, the last line
    assert over_squares[-1] == pytest.approx(0.5 * math.pi**2 / 24, abs=5e-4)  # the sum of 1/k^2, as printed


def test_two_outliers(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["two_outliers.py", "50"])
    runpy.run_path(str(EXAMPLES / "beyond" / "two_outliers.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    for line in lines[2:]:  # alpha from 0.2 on: close to the detachment overlaps of so small a system are smeared
        eigenvalue, its_theory, overlap, overlap_in_theory = (
            float(x) for pair in re.findall(r"(\d\.\d+) \+- [\d.]+, theory (\d\.\d+)", line) for x in pair
        )
        assert eigenvalue == pytest.approx(its_theory, rel=0.06)
        assert overlap == pytest.approx(overlap_in_theory, abs=0.03)
