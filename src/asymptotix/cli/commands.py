"""Commands of the command line. They import JAX and the theories only when needed, so that help appears at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._version import __version__
from .data_commands import data_app
from .messages import Debug, clear_messages, exit_code_of_interrupt
from .problem_files import read_problem
from .sweep_commands import add_to
from .tables import say, show, show_figures

if TYPE_CHECKING:
    from ..core.result import Result

EXAMPLE = """\
# Bayes-optimal learning of two layers of attention.

[problem]
type = "BayesOptimal"

[problem.model]
type = "DeepAttention"
layers = 2
tokens = 2
skip = 1.0

[solve]
# a number, a list, or a grid; spacing = "log" makes it geometric
alpha = { start = 0.05, stop = 1.6, num = 32 }
start = "uninformed"
tolerance = 1e-3

[simulate]
algorithm = { type = "GAMP" }
alpha = [0.3, 0.6, 1.2]
dim = 1000
seeds = 4

[thresholds]
# without this line all thresholds are computed, which takes longer
which = ["weak_recovery"]
# any number of the problem may be a grid, in the other sections too
skip = [0.5, 1.0, 2.0]
"""

HELP = f"""\
Exact high-dimensional theory of attention: learning curves, thresholds, matching algorithms.

**A first look:** a table and a picture of theory against message passing.

```sh
asymptotix demo
```

**A problem of your own:** put this into `two_layers.toml`. The names are those of Python.

```toml
{EXAMPLE}```

**Then:** the exact curve, the algorithm at finite size, the phase transitions.

```sh
asymptotix solve two_layers.toml --out curve.nc
asymptotix simulate two_layers.toml --out runs.nc
asymptotix thresholds two_layers.toml
asymptotix compare curve.nc runs.nc
asymptotix plot overlap curve.nc runs.nc --out overlap.png
```

An interrupt (Ctrl-C, or the SIGTERM of a cluster) keeps what is finished, and `--out` is written as points finish;
`--resume curve.nc` goes on from there, on a wider grid too.
A file written by `--out` opens with `asymptotix.load("curve.nc")` and with xarray; `--out curve.csv` writes a table.
In a problem an array is `inputs = {{ npz = "data.npz", array = "inputs" }}`, a function `link = "module:function"`.
A problem type or a function of another package is found after `imports = ["its_module"]` on the first line. A module
that lies beside the TOML file needs `--allow-imports`, because it is run.
"""

app = typer.Typer(
    name="asymptotix",
    help=HELP,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
add_to(app)

ProblemFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The problem and what to do with it.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the result: FILE.nc while points finish, FILE.csv at the end."),
]
Resume = Annotated[
    Path | None, typer.Option(metavar="FILE.nc", help="Take what an earlier call wrote with --out, and do the rest.")
]
AllowImports = Annotated[
    bool, typer.Option("--allow-imports", help="Run modules that FILE.toml names and that lie beside it.")
]


def main() -> None:
    """Run the command line: the entry point of the console script."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"asymptotix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    context.obj = {"debug": debug}


@app.command()
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("asymptotix-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and smaller sizes.")] = False,
    debug: Debug = False,
) -> None:
    """Compare each theory with its experiment: tables and pictures."""
    with clear_messages(context, debug):
        importlib.import_module("asymptotix.demo").main(out=out, quick=quick)


@app.command()
def solve(
    context: typer.Context,
    file: ProblemFile,
    out: Out = None,
    resume: Resume = None,
    allow_imports: AllowImports = False,
    debug: Debug = False,
) -> None:
    """Compute the exact learning curve at the controls of the section [solve]."""
    with clear_messages(context, debug):
        problem, section = read_problem(file, "solve", allow_imports=allow_imports)
        from ..core import verbs

        _finish(out, lambda kept: verbs.solve(problem, resume=resume, checkpoint=kept, **section))


@app.command()
def simulate(
    context: typer.Context,
    file: ProblemFile,
    out: Out = None,
    resume: Resume = None,
    allow_imports: AllowImports = False,
    debug: Debug = False,
) -> None:
    """Run the finite-size algorithm of the section [simulate]."""
    with clear_messages(context, debug):
        problem, section = read_problem(file, "simulate", allow_imports=allow_imports)
        from ..core import verbs
        from ..core.specification import build

        if missing := [name for name in ("algorithm", "seeds") if name not in section]:
            raise ValueError(f"[simulate] of {file} needs {' and '.join(missing)}")
        algorithm = build(section.pop("algorithm"))
        _finish(out, lambda kept: verbs.simulate(problem, algorithm, resume=resume, checkpoint=kept, **section))


@app.command()
def thresholds(
    context: typer.Context,
    file: ProblemFile,
    out: Out = None,
    resume: Resume = None,
    allow_imports: AllowImports = False,
    debug: Debug = False,
) -> None:
    """Compute the phase transitions, over the grids of the section [thresholds] if there is one."""
    with clear_messages(context, debug):
        problem, section = read_problem(file, "thresholds", allow_imports=allow_imports)
        from ..core import verbs

        _finish(out, lambda kept: verbs.thresholds(problem, resume=resume, checkpoint=kept, **section))


@app.command()
def reproduce(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[FIGURE]", help="Such as training/fig2; none lists them.")] = "",
    size: Annotated[str, typer.Option(help="quick or paper.")] = "quick",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("asymptotix-figures"),
    everything: Annotated[bool, typer.Option("--all", help="All that is missing, and a gallery.")] = False,
    debug: Debug = False,
) -> None:
    """Reproduce a figure of a paper: picture, data, and a record of what agrees; without a name, list the figures."""
    with clear_messages(context, debug):
        if name and everything:
            raise ValueError(f"give a figure or --all, not both; got {name!r} and --all")
        if not name and not everything:
            show_figures()
            return
        figures = importlib.import_module("asymptotix.figures.making.reproduce")
        if everything:
            figures.reproduce_all(size, out, say)
        else:
            figures.reproduce(name, size, out, say)
            figures.write_gallery(size, out)
            say(f"{out / name}: picture, data and record.md")


@app.command()
def compare(
    context: typer.Context,
    theory: Annotated[Path, typer.Argument(metavar="THEORY.nc", help="Written by `asymptotix solve --out`.")],
    experiment: Annotated[Path, typer.Argument(metavar="RUNS.nc", help="Written by `asymptotix simulate --out`.")],
    debug: Debug = False,
) -> None:
    """Compare theory and experiment: a line for every observable and point, with the distance in errors."""
    with clear_messages(context, debug):
        from ..core.compare import compare
        from ..core.result import load

        print(compare(load(theory), load(experiment)).table())


@app.command()
def plot(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="VARIABLE", help="Such as overlap or test_error.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE.nc ...", help="Theory, runs, thresholds.")],
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="Where to; the suffix says the format.")],
    debug: Debug = False,
) -> None:
    """Draw one variable: theory as lines, runs as points, thresholds as marks."""
    with clear_messages(context, debug):
        _check_folder(out)
        import matplotlib

        matplotlib.use("agg")
        from ..core.result import load

        first, *others = [load(file) for file in files]
        if name not in first.ds:
            raise ValueError(f"{files[0]} has no {name!r}; it has {', '.join(map(str, first.ds.data_vars))}")
        figure = first.plot(name, reference=others).figure.get_figure(root=True)
        assert figure is not None
        figure.savefig(out)
        print(f"written to {out}")


def _check_folder(out: Path) -> None:
    """Raise OSError, before the work, if ``out`` is a folder or lies in a folder that does not exist."""
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder; name a file in it, such as {out / 'result.nc'}")


def _finish(out: Path | None, work: Callable[[Path | None], Result]) -> None:
    """Call ``work``, write its result to ``out`` (.nc or .csv), print it, and raise typer.Exit if it is unfinished.

    ``work`` takes the path to which it saves finished points as it runs: ``out`` if that is a .nc file, else None.
    """
    if out is not None:
        _check_folder(out)
        if out.suffix not in (".nc", ".csv"):
            raise ValueError(f"--out must end in .nc (netCDF) or .csv (a table), got {out}")
    result = work(out if out is not None and out.suffix == ".nc" else None)
    try:  # written before a closed pipe can stop the printing, and printed even if the disk is full
        if out is not None and result.begun:
            _write(result, out)
    finally:
        show(result)
    if out is not None:
        print(f"written to {out}" if result.begun else f"nothing is finished, and {out} is as it was")
    if not result.finished:
        raise typer.Exit(exit_code_of_interrupt())


def _write(result: Result, out: Path) -> None:
    if out.suffix == ".csv":
        result.to_dataframe().to_csv(out, index=False)
    else:
        result.save(out)
