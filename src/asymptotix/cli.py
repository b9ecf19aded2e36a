"""The command line: a problem described in TOML does what the same problem does in Python.

This file reads, calls the verbs and prints. JAX and the theories are imported only when a command needs them,
so that help appears at once.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import itertools
import math
import os
import signal
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._version import __version__

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from .core.problem import Problem
    from .core.result import Result

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
# without this line all of them, which takes longer
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
```

An interrupt (Ctrl-C, or the SIGTERM of a cluster) keeps what is finished, and `--out` is written as points finish;
`--resume curve.nc` goes on from there, on a wider grid too.
A file written by `--out` opens with `asymptotix.load("curve.nc")` and with xarray. A problem type of another
package is found after `imports = ["its_module"]` on the first line; that of a script beside the TOML file too, with
`--allow-imports`, because it runs the script.
"""

SECTIONS = ("imports", "problem", "solve", "simulate", "thresholds")
EXPECTED_ERRORS = (
    ValueError, TypeError, NotImplementedError, OSError, ImportError, MemoryError, RecursionError, OverflowError,
)  # fmt: skip
MAX_COLUMNS_PER_VARIABLE = 4  # a 2 x 2 overlap still fits beside the errors; larger ones are in the file
MAX_ROWS_PER_VARIABLE = 64
MAX_STATUS_WIDTH = 30  # a longer sentence takes several lines

app = typer.Typer(
    name="asymptotix",
    help=HELP,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
ProblemFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The problem and what to do with it.")]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE.nc", help="Also write the result, as netCDF, while points finish.")
]
Resume = Annotated[
    Path | None, typer.Option(metavar="FILE.nc", help="Take what an earlier call wrote with --out, and do the rest.")
]
AllowImports = Annotated[
    bool, typer.Option("--allow-imports", help="Run modules beside FILE.toml that its `imports` name.")
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
    """All theories against their experiments: tables and pictures."""
    with _clear_messages(context, debug):
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
    """The exact learning curve, at the controls of the section [solve]."""
    with _clear_messages(context, debug):
        problem, section = read_problem(file, "solve", allow_imports=allow_imports)
        from .core import verbs

        _finish(_checked_out(out), lambda: verbs.solve(problem, resume=resume, checkpoint=out, **section))


@app.command()
def simulate(
    context: typer.Context,
    file: ProblemFile,
    out: Out = None,
    resume: Resume = None,
    allow_imports: AllowImports = False,
    debug: Debug = False,
) -> None:
    """The finite-size algorithm, as the section [simulate] says."""
    with _clear_messages(context, debug):
        problem, section = read_problem(file, "simulate", allow_imports=allow_imports)
        from .core import verbs
        from .core.specification import build

        if missing := [name for name in ("algorithm", "seeds") if name not in section]:
            raise ValueError(f"[simulate] of {file} needs {' and '.join(missing)}")
        algorithm = build(section.pop("algorithm"))
        _finish(_checked_out(out), lambda: verbs.simulate(problem, algorithm, resume=resume, checkpoint=out, **section))


@app.command()
def thresholds(
    context: typer.Context,
    file: ProblemFile,
    out: Out = None,
    resume: Resume = None,
    allow_imports: AllowImports = False,
    debug: Debug = False,
) -> None:
    """The phase transitions, over the grids of the section [thresholds] if there is one."""
    with _clear_messages(context, debug):
        problem, section = read_problem(file, "thresholds", allow_imports=allow_imports)
        from .core import verbs

        _finish(_checked_out(out), lambda: verbs.thresholds(problem, resume=resume, checkpoint=out, **section))


@contextmanager
def _clear_messages(context: typer.Context, debug: bool) -> Iterator[None]:
    """Warnings in one line each; an expected error as one sentence and exit code 2, unless debugging."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, *_, **__: print(f"Warning: {_one_line(text)}", file=sys.stderr)
        try:
            yield
        except Exception as error:
            if debug or context.obj["debug"] or not (isinstance(error, EXPECTED_ERRORS) or _is_out_of_memory(error)):
                raise
            print(f"Error: {_in_words(error)}", file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(_exit_code_of_interrupt()) from error


def _exit_code_of_interrupt() -> int:
    """As shells count: 128 and the number of the signal, 130 for Ctrl-C and 143 for SIGTERM."""
    from .numerics import interrupts

    return 128 + (interrupts.last_signal() or signal.SIGINT)


def _is_out_of_memory(error: Exception) -> bool:
    """XLA says so in an error of its own class, which is that of all its errors."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error))


def _in_words(error: Exception) -> str:
    said = _one_line(error) or type(error).__name__
    if _is_out_of_memory(error):
        return f"there is not enough memory: {said}"
    if isinstance(error, RecursionError):
        return f"something is nested too deeply: {said}"
    return said


def _one_line(message: str | Warning | Exception) -> str:
    return " ".join(str(message).split())


# ---------------------------------------------------------------------------------------------- reading


def read_problem(file: Path, verb: str, *, allow_imports: bool = False) -> tuple[Problem, dict[str, Any]]:
    """Read the problem of a TOML file and the section of one verb, its grids expanded.

    Modules that it imports are run. Those of the environment are the user's own; one beside the file came with it and
    needs ``allow_imports``.
    """
    document = _toml(file)
    _no_other_names(document, SECTIONS, f"section or key of {file}")
    if "problem" not in document:
        raise ValueError(f"{file} has no section [problem]; `asymptotix --help` shows a whole file")
    if verb not in document and verb != "thresholds":
        there = ", ".join(f"[{name}]" for name in document)
        raise ValueError(f"{file} has no section [{verb}] that says where to {verb}; it has {there}")
    if not isinstance(section := document.get(verb, {}), dict):
        raise ValueError(f"{verb} of {file} must be a section [{verb}], got {section!r}")
    from .core.specification import build

    _import_modules(document.get("imports", []), file, allow_imports)
    problem = build(document["problem"])
    return problem, {name: _value(f"{verb}.{name}", value) for name, value in section.items()}


def _toml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not even text
        raise ValueError(f"{file} is not valid TOML: {error}") from error


def _import_modules(names: Any, file: Path, allow_beside: bool) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'imports must be a list of module names such as ["my_problems"], got {names!r}')
    folder, path = file.resolve().parent, sys.path
    # Python itself may have put the folder it was started in there.
    installed = [entry for entry in path if Path(entry or os.curdir).resolve() not in (folder, Path.cwd())]
    others = [entry for entry in path if entry not in installed]
    for name in names:
        try:
            sys.path = installed
            if not _is_installed(name, folder):
                if _lies_in(name, folder) and not allow_beside:
                    raise ImportError(
                        f"{file} imports {name!r}, a module that lies beside it and is not installed; importing runs "
                        "it: if you trust it, allow that with --allow-imports"
                    )
                sys.path = [*installed, *others, str(folder)]  # last: it must not stand in for what is installed
            _import(name)
        finally:
            sys.path = path


def _is_installed(name: str, folder: Path) -> bool:
    """Whether a module is found elsewhere than in a folder. Only its outermost package is sought: nothing is run."""
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    # It may have been imported from the folder before.
    return spec is not None and Path(spec.origin or "").resolve().parent not in (folder, folder / top)


def _lies_in(name: str, folder: Path) -> bool:
    return importlib.machinery.PathFinder.find_spec(name.partition(".")[0], [str(folder)]) is not None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"imports: {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _value(name: str, value: Any) -> Any:
    """A grid given by its ends as an array; anything else, an algorithm or what is held too, as it is."""
    if not isinstance(value, dict) or "type" in value or name == "solve.fixed":
        return value
    _no_other_names(value, ("start", "stop", "num", "spacing"), f"key of {name}")
    if missing := [key for key in ("start", "stop", "num") if key not in value]:
        raise ValueError(f"{name} needs {', '.join(missing)}: {{ start = 0.1, stop = 1.0, num = 10 }}")
    import numpy as np

    from .numerics import checks

    spacing = checks.one_of(f"{name}.spacing", value.get("spacing", "linear"), ("linear", "log"))
    check = checks.positive if spacing == "log" else checks.number
    start, stop = (check(f"{name}.{key}", value[key]) for key in ("start", "stop"))
    num = checks.integer(f"{name}.num", value["num"], minimum=1)
    return np.geomspace(start, stop, num) if spacing == "log" else np.linspace(start, stop, num)


def _no_other_names(given: Mapping[str, Any], accepted: Sequence[str], what: str) -> None:
    if unknown := [name for name in given if name not in accepted]:
        raise ValueError(f"unknown {what}: {', '.join(unknown)}; accepted are {', '.join(accepted)}")


# ---------------------------------------------------------------------------------------------- printing


def _checked_out(out: Path | None) -> Path | None:
    """The output path, refused before the work rather than after it."""
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"--out {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise IsADirectoryError(f"--out {out} is a folder; name a file in it, such as {out / 'result.nc'}")
    return out


def _finish(out: Path | None, work: Callable[[], Result]) -> None:
    result = work()
    try:  # neither a closed pipe nor a full disk may lose the numbers
        if out is not None and result.begun:
            result.save(out)
    finally:
        show(result)
    if out is not None:
        print(f"written to {out}" if result.begun else f"nothing is finished, and {out} is as it was")
    if not result.finished:
        raise typer.Exit(_exit_code_of_interrupt())


def show(result: Result) -> None:
    """Print a result: a row for every point, or for a single point a row for every number."""
    from rich.console import Console

    # Piped output has no width to respect, and a table that is cut there is useless.
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    console.print(_plain(_title(result)), style="bold")
    point_dims = result.status.dims
    shown, left_out = _variables(result, MAX_COLUMNS_PER_VARIABLE if point_dims else MAX_ROWS_PER_VARIABLE)
    headers = [*map(str, point_dims), *(label for name in shown for label in _labels(result, name)), "status"]
    positions = itertools.product(*map(range, result.status.shape))
    rows = [_cells(result, position, shown) for position in positions]
    if point_dims:
        columns = list(zip(headers, *rows, strict=True))
        controls, values, status = columns[: len(point_dims)], columns[len(point_dims) : -1], columns[-1]
        for group in _fitting_groups(values, [*controls, status], console.width):
            console.print(_table([*controls, *group, status]))
    else:
        console.print(_table([("quantity", *headers), ("value", *rows[0])]))
    if left_out:
        print(f"not shown, but written by --out: {', '.join(left_out)}")


def _table(columns: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table()
    for header, *_ in columns:
        justify = "left" if header in ("status", "quantity") else "right"
        table.add_column(_plain(header), justify=justify, no_wrap=header not in ("status", "value"))
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*map(_plain, row))
    return table


def _fitting_groups(
    values: Sequence[Sequence[str]], repeated: Sequence[Sequence[str]], room: int
) -> list[list[Sequence[str]]]:
    """Columns of numbers for as many tables as the terminal's width asks for: a cut number is a wrong one."""

    def width(column: Sequence[str]) -> int:
        return min(max(map(len, column)), MAX_STATUS_WIDTH) + 3  # two blanks and a line

    taken = sum(map(width, repeated)) + 1
    groups: list[list[Sequence[str]]] = [[]]
    for column in values:
        if groups[-1] and taken + sum(map(width, [*groups[-1], column])) > room:
            groups.append([])
        groups[-1].append(column)
    return groups


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text)  # a string would be read as markup: "overlap[0,0]" would lose its brackets


def _title(result: Result) -> str:
    fixed = [f"{name} = {value.item():.6g}" for name, value in result.ds.coords.items() if value.ndim == 0]
    grids = [f"over {' and '.join(map(str, result.status.dims))}"] if result.status.dims else []
    return ", ".join([f"{result.kind} of {result.problem!r}", *fixed, *grids])


def _variables(result: Result, limit: int) -> tuple[list[str], list[str]]:
    """The names of the variables that have at most `limit` numbers per point, and of the larger ones."""
    from .core.dataset.assemble import RESERVED

    shown, left_out = [], []
    for name, variable in result.ds.data_vars.items():
        if name in RESERVED or str(name).endswith("_err"):
            continue
        numbers = variable.size // max(result.status.size, 1)
        (shown if numbers <= limit else left_out).append(str(name))
    return shown, left_out


def _labels(result: Result, name: str) -> list[str]:
    own = [dim for dim in result.ds[name].dims if dim not in result.status.dims]
    entries = itertools.product(*(result.ds[dim].values for dim in own))
    return [f"{name}[{','.join(map(str, entry))}]" if own else name for entry in entries]


def _cells(result: Result, position: tuple[int, ...], shown: Sequence[str]) -> list[str]:
    """One point as text: controls, values with their numerical errors, status."""
    point = result.ds.isel(dict(zip(result.status.dims, position, strict=True)))
    controls = [f"{point[dim].item():.6g}" for dim in result.status.dims]
    values = []
    for name in shown:
        numbers = point[name].values.ravel()
        errors = point[f"{name}_err"].values.ravel() if f"{name}_err" in point else [math.nan] * numbers.size
        values += [format_number(*pair) for pair in zip(numbers, errors, strict=True)]
    return [*controls, *values, str(point["status"].item())]


def format_number(value: float, error: float = math.nan) -> str:
    """The value to the last digit that its numerical error leaves, with that error if there is one.

    >>> format_number(0.712345, 0.00123), format_number(0.712345), format_number(0.5, 0.0)
    ('0.7123 ± 0.0012', '0.712345', '0.5')
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = max(1 - math.floor(math.log10(error)), 0)
    if decimals > 9:
        return f"{value:.9g} ± {error:.1e}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
