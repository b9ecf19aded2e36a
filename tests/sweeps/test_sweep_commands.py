"""The commands of sweeps, as they are typed."""

import os
from pathlib import Path

import pytest
import xarray as xr
from typer.testing import CliRunner

import asymptotix as asx
from asymptotix import cli
from asymptotix.sweeps.sweep_store import SweepStore
from sweeps.sweep_toys import PROBLEM
from toy import ToyLearning, ToyRegression

SPEC = """
imports = ["toy"]
[problem]
type = "ToyLearning"
weight_decay = {decay}
[problem.model]
type = "ToyRegression"
noise = 0.125
[sweep]
part = "{part}"
chunk = 2
[sweep.over]
alpha = {{ start = 0.5, stop = 1.5, num = 3 }}
"""


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def written(folder: Path, part: str, *, decay: float = 0.0, more: str = "") -> Path:
    path = folder / f"{part}.toml"
    path.write_text(SPEC.format(part=part, decay=decay).replace("chunk = 2", f"chunk = 2\n{more}"))
    return path


def test_several_problems_are_parts_of_one_store(tmp_path):
    store = tmp_path / "store"
    for part, decay in (("free", 0.0), ("decayed", 0.5)):
        done = run("sweep", written(tmp_path, part, decay=decay), "--store", store)
        assert done.exit_code == 0, done.output
    assert "4 of 4 chunks done, 0 running, 0 failed, 0 left" in run("status", store).output
    assert "part must name one of" in run("collect", store).output
    for part, decay in (("free", 0.0), ("decayed", 0.5)):
        assert run("collect", store, "--part", part, "--out", tmp_path / f"{part}.nc").exit_code == 0
        verb = asx.solve(ToyLearning(ToyRegression(noise=0.125), decay), alpha=[0.5, 1.0, 1.5], progress=False)
        xr.testing.assert_identical(asx.load(tmp_path / f"{part}.nc").ds, verb.ds)


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        (("--workers", 2, "--slurm", 4), "", "give one of --workers, --dask, --slurm, got --workers and --slurm"),
        ((), 'store = "elsewhere"', "store cannot stand in [sweep]"),
        ((), "executor = 2", "executor cannot stand in [sweep]"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, options, more, message):
    done = run("sweep", written(tmp_path, "own", more=more), "--store", tmp_path / "store", *options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "store").exists()


def test_failures_are_tried_again_once_by_all_tasks_of_an_array(tmp_path, monkeypatch):
    """They are forgotten when the array is submitted, not by every task that starts."""
    store, sbatch = tmp_path / "store", tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    asx.sweep(PROBLEM, over={"alpha": [0.5]}, store=store)
    kept = SweepStore(store)
    kept.keep_failure(kept.plan()[0], "no such thing")
    spec = written(tmp_path, "own")
    for options, left in (((), 1), (("--retry-failed",), 0)):
        done = run("sweep", spec, "--store", store, "--slurm", 3, *options)
        assert done.output == "Submitted batch job 7\n"
        assert len(kept.failures()) == left
        assert "--retry-failed" not in (store / "slurm.sh").read_text()
