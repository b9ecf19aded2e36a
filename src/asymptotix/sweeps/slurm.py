"""A sweep on SLURM: a job array in which every task claims missing chunks of the store until none is left.

The tasks are independent of each other and have no assigned chunks. A task that is killed loses only its current chunk,
which another task then computes. Before its wall time is over, a task ends its work and submits itself again.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ..core.dataset.whole_file import write_whole
from ..numerics import checks
from .sweep_store import SweepStore

#: Seconds before the end of its wall time (at most a tenth of that time) at which a task gets the signal to end: enough
#: to end a step and to submit itself again.
SECONDS_BEFORE_THE_END = 90
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d{1,3}(?::\d\d){0,2})")

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{tasks}
#SBATCH --time={time}
#SBATCH --cpus-per-task={cpus}
#SBATCH --signal=B:USR1@{before}
#SBATCH --output={log}
{more}
# SLURM says USR1 to this shell before the wall time is over: the work ends, and this task is submitted again.
again() {{
    kill -TERM "$work" 2>/dev/null
    wait "$work"
    sbatch --array="$SLURM_ARRAY_TASK_ID" {script}
    exit 0
}}
export OMP_NUM_THREADS={cpus} OPENBLAS_NUM_THREADS={cpus} NUMBA_NUM_THREADS={cpus} PJRT_NPROC={cpus}
{command} &
work=$!
trap again USR1
wait "$work"
"""


def job_script(
    store: Path, command: list[str], *, tasks: int, time: str, cpus: int = 1, gpus: int = 0, partition: str = ""
) -> str:
    """Return the script of a job array.

    Parameters
    ----------
    store : Path
        Folder of the sweep, in which script and logs are stored too.
    command : list of str
        Command of every task, with absolute paths.
    tasks, cpus, gpus : int
        Number of tasks, and cores and GPUs of each.
    time : str
        Wall time of a task in SLURM's notation, such as "4:00:00".
    partition : str
    """
    checks.integer("tasks", tasks, minimum=1)
    checks.integer("cpus", cpus, minimum=1)
    checks.integer("gpus", gpus, minimum=0)
    more = [f"#SBATCH --gres=gpu:{gpus}"] * (gpus > 0) + [f"#SBATCH --partition={partition}"] * bool(partition)
    place = store.resolve()
    return _SCRIPT.format(
        name=f"sweep-{re.sub(r'[^A-Za-z0-9_.-]', '-', place.name)}", tasks=tasks, time=time, cpus=cpus,
        before=min(SECONDS_BEFORE_THE_END, _seconds(time) // 10), log=place / "slurm-%A_%a.log", more="\n".join(more),
        script=shlex.quote(str(place / "slurm.sh")), command=shlex.join(command),
    )  # fmt: skip


def _seconds(time: str) -> int:
    """Return a wall time in seconds, from minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on."""
    found = _TIME.fullmatch(time)
    if found is None:
        raise ValueError(f'time must be a wall time as SLURM writes it, such as "4:00:00" or "2-00:00", got {time!r}')
    numbers = [int(part) for part in found["rest"].split(":")]
    units = (3600, 60, 1) if found["days"] or len(numbers) == 3 else (60, 1)
    return 86400 * int(found["days"] or 0) + sum(n * unit for n, unit in zip(numbers, units, strict=False))


def task_command(spec: Path, store: Path, *, allow_imports: bool) -> list[str]:
    """Return the command of a task, a list of words, which runs the sweep of the TOML file ``spec`` in one process."""
    options = ["--allow-imports"] if allow_imports else []
    return [sys.executable, "-m", "asymptotix", "sweep", str(spec.resolve()), "--store", str(store.resolve()), *options]


def submit(store: Path, script: str, *, retry_failed: bool = False) -> str:
    """Write the script into the store and submit it to SLURM; return the output of ``sbatch``.

    ``retry_failed`` removes the recorded failures once, before the tasks start: each task would remove them again.
    """
    if shutil.which("sbatch") is None:
        raise FileNotFoundError("sbatch was not found: this machine submits no SLURM jobs; --dry-run prints the script")
    kept = SweepStore(store, create=True)
    if retry_failed:
        kept.forget_failures(kept.failures())
    path = store.resolve() / "slurm.sh"
    write_whole(path, script.encode())
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"sbatch refused {path}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
