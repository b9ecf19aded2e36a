"""A short form of what `file_faults.py` does at length to files of results."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asymptotix import cli
from faults import file_faults
from toy import ToyLearning

SCRIPT = Path(__file__).with_name("file_faults.py")


@pytest.mark.parametrize("moment", file_faults.MOMENTS)
def test_full_disk_leaves_the_old_file_and_the_process(tmp_path, moment):
    assert file_faults.full_disk_outcome(tmp_path, moment) == "kept"


def test_full_disk_does_not_take_the_table_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # one table
    problem = 'imports = ["toy"]\nproblem = { type = "ToyLearning", model = { type = "ToyRegression" } }\n'
    (tmp_path / "toy.toml").write_text(problem + "solve = { alpha = [0.25, 0.5] }\n")
    out = tmp_path / "out" / "curve.nc"
    out.parent.mkdir()
    with file_faults.disk_full_at("middle"):
        result = CliRunner().invoke(cli.app, ["solve", str(tmp_path / "toy.toml"), "--out", str(out)])
    assert result.exit_code == 2
    assert result.stdout.count("converged") == 2
    assert str(out) in result.stderr
    assert "No space left" in result.stderr
    assert list(out.parent.iterdir()) == []


def test_damaged_files_are_refused(tmp_path):
    result, path, data = file_faults._saved(tmp_path)
    rng = random.Random(0)
    for _ in range(50):
        path.write_bytes(file_faults.with_flipped_bit(data, rng.randrange(8 * len(data))))
        assert file_faults.judged(path, [result]) in ("refused", "identical")
    for length in (0, 100, len(data) // 2):
        path.write_bytes(data[:length])
        assert file_faults.judged(path, [result]) == "refused"


def test_the_judge_sees_what_is_wrong(tmp_path):
    """Numbers that were never written, and errors that do not name the file, are not let through."""
    result, path, _ = file_faults._saved(tmp_path)
    assert file_faults.judged(path, [result]) == "identical"
    assert file_faults.judged(path, [file_faults.example(1)]) == "WRONG: other numbers"
    assert file_faults.judged(tmp_path / "none.nc", [result]).startswith("WRONG: FileNotFoundError")
    assert isinstance(result.problem, ToyLearning)


@pytest.mark.slow
def test_kills_damage_full_disks_and_several_writers():
    counts = ["--kills", "10", "--bits", "200", "--truncations", "20", "--seconds", "3", "--seed", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *counts], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert len(done.stdout.splitlines()) == 5
    assert done.stderr == ""
