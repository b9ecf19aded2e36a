"""Commands for sweeps: `sweep`, `status` and `collect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .messages import Debug, clear_messages, exit_code_of_interrupt
from .problem_files import read_problem
from .tables import show

Store = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the sweep.")]
#: Options that choose the executor; without any of them this process computes.
WHO = ("workers", "dask", "slurm")
#: Arguments of :func:`asymptotix.sweep` that a file must not contain, because the command line sets them.
FROM_THE_COMMAND_LINE = ("problem", "store", "executor", "retry_failed", "progress")
PartOption = Annotated[str | None, typer.Option("--part", help="Which part, where there are several.")]


def sweep(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The problem, and a section [sweep].")],
    store: Annotated[Path, typer.Option(metavar="DIR", help="Where what is done is kept, and found again.")],
    workers: Annotated[int, typer.Option(metavar="N", help="Processes on this machine; 0: this one alone.")] = 0,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of a Dask scheduler.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what raised an error.")] = False,
    slurm: Annotated[int | None, typer.Option(metavar="N", help="Submit a SLURM job array of N tasks.")] = None,
    time: Annotated[str, typer.Option(help="SLURM: wall time of a task.")] = "4:00:00",
    cpus: Annotated[int, typer.Option(help="SLURM: cores of a task.")] = 1,
    gpus: Annotated[int, typer.Option(help="SLURM: GPUs of a task.")] = 0,
    partition: Annotated[str, typer.Option(help="SLURM: partition.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="SLURM: print the script and submit nothing.")] = False,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Run modules that FILE.toml names and that lie beside it.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Compute theory, thresholds or runs over a grid, in stored chunks; the same command resumes after a crash."""
    with clear_messages(context, debug):
        if len(given := [f"--{name}" for name, value in zip(WHO, (workers, dask, slurm), strict=True) if value]) > 1:
            raise ValueError(f"give one of {', '.join(f'--{name}' for name in WHO)}, got {' and '.join(given)}")
        problem, section = read_problem(file, "sweep", allow_imports=allow_imports)
        options = _options(section)
        if slurm is not None or dry_run:
            from ..sweeps import slurm as on_slurm

            command = on_slurm.task_command(file, store, allow_imports=allow_imports)
            script = on_slurm.job_script(
                store, command, tasks=slurm or 1, time=time, cpus=cpus, gpus=gpus, partition=partition
            )
            print(script if dry_run else on_slurm.submit(store, script, retry_failed=retry_failed))
            return
        from ..sweeps.sweeping import sweep as run_sweep
        from ..sweeps.sweeping import sweep_status

        executor = dask or workers or None
        result = run_sweep(problem, store=store, executor=executor, retry_failed=retry_failed, **options)
        standing = sweep_status(store)
        print(standing)
        if not result.finished:
            raise typer.Exit(exit_code_of_interrupt())
        if standing.failed:  # a script that waits for this command must not take the sweep for complete
            raise typer.Exit(1)


def _options(section: dict[str, Any]) -> dict[str, Any]:
    """Return the ``section`` [sweep] of a file as keyword arguments of :func:`asymptotix.sweep`."""
    from ..core.specification import build

    if "over" not in section:
        raise ValueError("[sweep] needs over, a table of controls and fields: [sweep.over] alpha = [0.5, 1.0]")
    if taken := [name for name in FROM_THE_COMMAND_LINE if name in section]:
        raise ValueError(f"{', '.join(taken)} cannot stand in [sweep]: the options of the command say it")
    if (algorithm := section.get("algorithm")) is not None:
        section["algorithm"] = build(algorithm)
    return section


def status(context: typer.Context, store: Store, debug: Debug = False) -> None:
    """Show the progress of a sweep: done, running, failed, left; also while it runs, and from another machine."""
    with clear_messages(context, debug):
        from ..sweeps.sweeping import sweep_status

        print(sweep_status(store))


def collect(
    context: typer.Context,
    store: Store,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it: FILE.nc or FILE.csv.")] = None,
    part: PartOption = None,
    debug: Debug = False,
) -> None:
    """Combine the finished chunks of a sweep into one result."""
    with clear_messages(context, debug):
        from ..sweeps.collecting import collect as collected

        result = collected(store, part=part)
        if out is None:
            show(result)
        elif out.suffix == ".csv":
            result.to_dataframe().to_csv(out, index=False)
        else:
            result.save(out)
        if out is not None:
            print(f"written to {out}")


def add_to(app: typer.Typer) -> None:
    """Add the commands sweep, status and collect to the command line ``app``."""
    for command in (sweep, status, collect):
        app.command()(command)
