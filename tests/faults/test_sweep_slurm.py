"""Sweeps on a real SLURM of one node, started here without systemd: an array, a task that is killed, a wall time."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.sweeps.slurm import job_script
from asymptotix.sweeps.sweep_store import SweepStore

SLURM_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={first}
SlurmdPort={second}
AuthType=auth/munge
AuthInfo=socket={here}/munge/socket
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
#: A theory whose points take a while, beside the TOML file that names it.
SLOW_THEORY = """\
import time
from dataclasses import dataclass
import asymptotix as asx

@dataclass(frozen=True)
class SlowOnSlurm(asx.Problem):
    seconds: float = 0.1
    controls = ("alpha",)

    def solve_points(self, points, *, start, tolerance, progress):
        for position, point in enumerate(points):
            time.sleep(self.seconds)
            yield position, asx.Outcome({"test_error": 1.0 / (1.0 + point["alpha"])})
"""
SPEC = """\
imports = ["slow_on_slurm"]
[problem]
type = "SlowOnSlurm"
seconds = {seconds}
[sweep]
chunk = 1
[sweep.over]
alpha = {{ start = 0.1, stop = 4.0, num = {points} }}
"""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A SLURM of one node with four places; its daemons end with the tests."""
    if missing := [name for name in SLURM_NEEDED if shutil.which(name) is None]:
        pytest.skip(f"SLURM is not installed here (no {', '.join(missing)}): apt-get install slurm-wlm")
    if os.geteuid() != 0:
        pytest.skip("daemons of SLURM are started by root")
    here = Path("/tmp") / f"slurm-{secrets.token_hex(4)}"  # sockets have short names
    for folder in ("munge", "state", "spool"):
        (here / folder).mkdir(parents=True)
    here.chmod(0o755)
    key = here / "munge" / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    (here / "munge").chmod(0o755)
    configuration = here / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    configuration.write_text(
        CONFIGURATION.format(here=here, host=host, cpus=os.cpu_count(), first=free_port(), second=free_port())
    )
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={here}/munge/socket",
         f"--pid-file={here}/munge/pid", f"--log-file={here}/munge/log", f"--seed-file={here}/munge/seed"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]  # fmt: skip
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    running = []
    try:
        for command in daemons:
            running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
            time.sleep(1.0)
        waited_for(lambda: "idle" in told(environment, "sinfo", "-h", "-o", "%T"), 60, "an idle node")
        yield environment
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(["scancel", "--user=root"], env=environment, check=False, timeout=20)
            time.sleep(1.0)
        for process in reversed(running):
            process.terminate()
            process.wait(20)
        shutil.rmtree(here, ignore_errors=True)


def told(environment, *command):
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout


def waited_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.5)


def written_spec(folder: Path, *, seconds: float, points: int) -> Path:
    (folder / "slow_on_slurm.py").write_text(SLOW_THEORY)
    spec = folder / "spec.toml"
    spec.write_text(SPEC.format(seconds=seconds, points=points))
    return spec


def submitted(cluster, spec: Path, store: Path, time_limit: str = "0:10:00") -> None:
    command = [sys.executable, "-m", "asymptotix", "sweep", str(spec), "--store", str(store), "--slurm", "4"]
    done = subprocess.run(
        [*command, "--time", time_limit, "--allow-imports"],
        env=cluster, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Submitted batch job" in done.stdout


def finished(store: Path) -> bool:
    standing = asx.sweep_status(store)
    return bool(standing.done) and not (standing.left or standing.running)


def undisturbed(spec: Path, store: Path) -> xr.Dataset:
    command = [sys.executable, "-m", "asymptotix", "sweep", str(spec), "--store", str(store), "--allow-imports"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return asx.collect(store).ds


def computed(store: Path) -> list[str]:
    return [line["chunk"] for line in SweepStore(store).log() if "chunk" in line]


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda **how: written_spec(tmp_path, **how)


@pytest.mark.slow
def test_an_array_of_four_tasks_one_of_which_is_killed(cluster, spec, tmp_path):
    file, store = spec(seconds=0.4, points=60), tmp_path / "store"
    submitted(cluster, file, store)
    waited_for(lambda: (store / "log.jsonl").exists() and len(computed(store)) > 3, 120, "first chunks")
    claim = next(path for path in (store / "claims").iterdir() if not path.name.startswith("."))
    with contextlib.suppress(OSError, ValueError):  # it may have ended just now
        os.kill(json.loads(claim.read_text())["process"], signal.SIGKILL)
    waited_for(lambda: finished(store), 180, "the sweep")
    names = computed(store)
    assert len(names) == len(set(names)) == 60  # nothing twice
    __import__("slow_on_slurm")
    xr.testing.assert_identical(asx.collect(store).ds, undisturbed(file, tmp_path / "other"))


@pytest.mark.full
@pytest.mark.slow
def test_a_task_that_meets_its_wall_time_submits_itself_again(cluster, spec, tmp_path):
    file, store = spec(seconds=2.0, points=120), tmp_path / "store"
    submitted(cluster, file, store, time_limit="0:01:00")
    waited_for(lambda: finished(store), 500, "the sweep")
    logs = list(store.glob("slurm-*.log"))
    assert len({path.name.partition("_")[0] for path in logs}) > 1, "no task was submitted again"
    __import__("slow_on_slurm")
    assert asx.collect(store).ok


def test_the_script_says_what_was_asked_for(tmp_path):
    script = job_script(tmp_path, ["python", "a b"], tasks=64, time="2-00:00", cpus=3, gpus=1, partition="long")
    for line in ("--array=1-64", "--time=2-00:00", "--cpus-per-task=3", "--gres=gpu:1", "--partition=long"):
        assert f"#SBATCH {line}\n" in script
    assert "--signal=B:USR1@90\n" in script
    assert "python 'a b' &" in script
    assert "USR1@6\n" in job_script(tmp_path, ["x"], tasks=1, time="1:00")


@pytest.mark.parametrize("time", ["soon", "1:2:3", "", "4h"])
def test_a_wall_time_that_slurm_does_not_know_is_refused(tmp_path, time):
    with pytest.raises(ValueError, match="time must be a wall time as SLURM writes it"):
        job_script(tmp_path, ["x"], tasks=1, time=time)
