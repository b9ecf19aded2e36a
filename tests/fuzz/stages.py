"""Random calls of every public name, by stage: each is a legal call with some of its arguments replaced."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from typer.testing import CliRunner

import asymptotix as asx
from asymptotix.cli import EXAMPLE, app
from fuzz.values import FUNCTIONS, any_grid, any_number, any_value, shown
from protocol.cases import CASES, PATHS, TRAINING, WRONG, Case, examples, public_specifications

mpl.use("Agg")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call to be tried: its text for people, and what does it."""

    text: str
    do: Callable[[], Any]


def _call(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Call:
    given = [shown(value) for value in args] + [f"{key}={shown(value)}" for key, value in options.items()]
    return Call(f"{name}({', '.join(given)})", lambda: function(*args, **options))


def _mutated(rng: np.random.Generator, legal: Mapping[str, Any], value=any_value, most: int = 2) -> dict[str, Any]:
    """The legal arguments with one or two of them replaced, left out or misspelt."""
    given = dict(legal)
    for name in rng.choice(list(legal), size=min(len(legal), int(rng.integers(1, most + 1))), replace=False):
        kind = rng.random()
        if kind < 0.04:
            del given[name]
        elif kind < 0.08:
            given[f"{name}s"] = given.pop(name)
        else:
            given[str(name)] = value(rng)
    return given


# -- descriptions --------------------------------------------------------------------------------------------------

SPECIFICATIONS = public_specifications()
EXAMPLES = examples()
FIELDS_WITH_FUNCTIONS = ("link", "loss", "penalty", "activation")


def describe(rng: np.random.Generator) -> Call:
    """A model, target, problem or algorithm is made."""
    name = str(rng.choice(sorted(SPECIFICATIONS)))
    example = EXAMPLES[SPECIFICATIONS[name]]
    legal = {f.name: getattr(example, f.name) for f in dataclasses.fields(example) if f.init}  # type: ignore[arg-type]
    functions = [field for field in FIELDS_WITH_FUNCTIONS if field in legal]
    if functions and rng.random() < 0.3:
        chosen = FUNCTIONS[int(rng.integers(len(FUNCTIONS)))]
        return _call(name, SPECIFICATIONS[name], **{**legal, str(rng.choice(functions)): chosen})
    wrong = WRONG.get(SPECIFICATIONS[name], {})
    if wrong and rng.random() < 0.15:
        field = str(rng.choice(sorted(wrong)))
        return _call(name, SPECIFICATIONS[name], **{**legal, field: wrong[field][int(rng.integers(len(wrong[field])))]})
    return _call(name, SPECIFICATIONS[name], **_mutated(rng, legal))


# -- verbs ---------------------------------------------------------------------------------------------------------


def _options(rng: np.random.Generator, case: Case, value=any_grid) -> dict[str, Any]:
    """Controls and fields of a case, one or two of them replaced by any number or grid."""
    legal: dict[str, Any] = {name: values[0] for name, values in case.controls.items()}
    chosen = rng.choice(sorted(case.fields), size=min(1, len(case.fields)), replace=False)
    return _mutated(rng, legal | {str(name): case.fields[str(name)][1] for name in chosen}, value)


def solve(rng: np.random.Generator) -> Call:
    """The theory is solved at any controls and fields, with any options."""
    name = str(rng.choice([name for name, case in CASES.items() if case.is_theory]))
    case = CASES[name]
    given = _options(rng, case) | {"tolerance": case.tolerance}
    if rng.random() < 0.3:
        option = str(rng.choice(["start", "tolerance", "progress", "resume", "checkpoint"]))
        given[option] = any_value(rng)
    problem = case.problem if rng.random() < 0.97 else any_value(rng)
    return _call(f"solve[{name}]", functools.partial(asx.solve, problem), **{"progress": False, **given})


def _affordable(rng: np.random.Generator) -> Any:
    """A number or grid, but for those that mean an honest hour of work."""
    given = any_grid(rng)
    dear = (1e3, 1e4, 1e6)
    if isinstance(given, list):
        return [30.0 if _is_in(number, dear) else number for number in given]
    return 30.0 if _is_in(given, dear) else given


def _is_in(value: Any, numbers: tuple[float, ...]) -> bool:
    return isinstance(value, float) and value in numbers


def simulate(rng: np.random.Generator) -> Call:
    """An algorithm is run at any controls, sizes and seeds."""
    name = str(rng.choice([name for name, case in CASES.items() if not case.is_theory]))
    case = CASES[name]
    legal = {name: values[0] for name, values in case.controls.items()} | {"seeds": 1, "progress": False}
    legal |= {"dim": case.dim} if case.dim is not None else {}
    if rng.random() < 0.5:
        given = _mutated(rng, legal, _affordable, most=1)
    else:
        own = _options(rng, case, _affordable)
        given = legal | {name: value for name, value in own.items() if name not in ("dim", "seeds")}
    algorithm: Any = case.algorithm if rng.random() < 0.95 else any_value(rng)
    return _call(f"simulate[{name}]", functools.partial(asx.simulate, case.problem, algorithm), **given)


#: Problems whose thresholds take a moment.
QUICK_THRESHOLDS = ("one layer", "infinite depth", "training", "Bayes-optimal attention", "training, atoms", "paths")


def thresholds(rng: np.random.Generator) -> Call:
    """Thresholds over any field."""
    case = CASES[str(rng.choice(QUICK_THRESHOLDS))]
    field = str(rng.choice(sorted(case.fields)))
    given: dict[str, Any] = {field: any_grid(rng), "progress": False}
    if rng.random() < 0.3:
        given["tolerance"] = any_value(rng)
    return _call(f"thresholds[{type(case.problem).__name__}]", functools.partial(asx.thresholds, case.problem), **given)


def differentiate(rng: np.random.Generator) -> Call:
    """Derivatives and optima of training."""
    legal = {"problem": TRAINING, "observable": "test_error", "field": "weight_decay", "alpha": 1.0, "tolerance": 1e-3}
    kind = rng.random()
    if kind < 0.3:  # anything may be wrong
        return _call("gradient", asx.gradient, **_mutated(rng, legal))
    if kind < 0.5:
        return _call("optimum", asx.optimum, **_mutated(rng, legal | {"bounds": (1e-3, 1.0)}))
    point = {"alpha": any_number(rng)} if rng.random() < 0.5 else {"tolerance": any_number(rng)}
    return _call("gradient", asx.gradient, **legal | point)


# -- what is done with results -------------------------------------------------------------------------------------


@functools.cache
def _results() -> dict[str, asx.Result]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ("one layer", "training", "paths", "MatrixAMP", "RelaxedBP", "NUTS")
        return {name: CASES[name].whole for name in names}


@functools.cache
def _weights() -> asx.Weights:
    rng = np.random.default_rng(0)
    return asx.Weights(rng.standard_normal((5, 4)), [rng.standard_normal((2, 5, 5))], rng.standard_normal(5))


def read(rng: np.random.Generator) -> Call:
    """Results are read, drawn and compared; heads are scored and pruned; tasks are drawn."""
    results = _results()
    name = str(rng.choice(sorted(results)))
    result, paths = results[name], results["paths"]
    inputs = PATHS.inputs
    calls: list[Callable[[], Call]] = [
        lambda: _call(f"{name}.plot", result.plot, any_value(rng)),
        lambda: _call(f"{name}.getitem", result.__getitem__, any_value(rng)),
        lambda: _call("spectrum", results["training"].isel(alpha=int(rng.integers(2))).spectrum),
        lambda: _call("predict", paths.predict, **_mutated(rng, {"inputs": inputs})),
        lambda: _call("evaluate", paths.evaluate, **_mutated(rng, {"inputs": inputs, "labels": PATHS.labels})),
        lambda: _call("alignment", paths.alignment, any_value(rng)),
        lambda: _call("compare", asx.compare, **_mutated(rng, {
            "theory": results["training"], "experiment": results["MatrixAMP"], "by": None})),
        lambda: _call("head_scores", asx.head_scores, **_mutated(rng, {
            "order_parameter": paths, "rule": "both", "normalize": True, "heads": None})),
        lambda: _call("prune", asx.prune, **_mutated(rng, {"whole": paths, "heads": [(0, 0)]})),
        lambda: _call("empirical_order_parameter", asx.empirical_order_parameter, **_mutated(rng, {
            "weights": _weights(), "scaling": "order one"})),
        lambda: _call("Outcome", asx.Outcome, **_mutated(rng, {
            "values": {"x": 1.0}, "status": "so", "converged": False})),
        lambda: _call("hidden_markov", asx.tasks.hidden_markov, **_mutated(rng, _defaults(asx.tasks.hidden_markov))),
    ]  # fmt: skip
    return calls[rng.integers(len(calls))]()


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    small = {"examples": 6, "test_examples": 3, "length": 5}
    return {name: small.get(name, p.default) for name, p in inspect.signature(function).parameters.items()}


# -- files and the command line ------------------------------------------------------------------------------------

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))


def load(rng: np.random.Generator) -> Call:
    """A file whose attributes, variables or bytes are not what was saved; or no file at all."""
    if rng.random() < 0.2:
        return _call("load", asx.load, **_mutated(rng, {"path": FOLDER / "none.nc", "problem": None}))
    result = _results()[str(rng.choice(["one layer", "training", "paths", "NUTS"]))]
    path = FOLDER / "changed.nc"
    if path.exists():
        path.unlink()
    result.save(path)
    if rng.random() < 0.3:
        data = bytearray(path.read_bytes())
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        return Call("load(flipped bit)", lambda: _same_or_raise(path, result))
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        ds = opened.load()
    text = _change(rng, ds)
    path.unlink()
    ds.to_netcdf(path, engine="h5netcdf")
    return Call(f"load({text})", lambda: asx.load(path))


def _same_or_raise(path: Path, result: asx.Result) -> asx.Result:
    loaded = asx.load(path)
    assert loaded.ds.identical(result.ds), "a flipped bit was loaded"
    return loaded


def _change(rng: np.random.Generator, ds: xr.Dataset) -> str:
    """Change one attribute of a file, and not what vouches for it."""
    name = str(rng.choice([name for name in ds.attrs if "checksum" not in str(name)]))
    junk: list[Any] = ["", "{", "[]", "null", "3", '{"type": "GAMP"}', '{"type": "Nothing"}', "[" * 5000, 7, 2.5, "2",
                       np.arange(3), '{"type": "DeepAttention", "layers": 1000000000, "tokens": 2}',
                       '{"type": "BayesOptimal", "model": {"type": "DeepAttention", "layers": 100000, "tokens": 2}}',
                       json.dumps({"type": "Empirical", "spectrum": [1.0] * 50_000})]  # fmt: skip
    ds.attrs[name] = junk[rng.integers(len(junk))]
    return f"attribute {name} = {shown(ds.attrs[name])[:60]}"


def command(rng: np.random.Generator) -> Call:
    """The command line with a changed problem file."""
    example: str = str(EXAMPLE).replace("layers = 2", "layers = 1").replace("num = 32", "num = 2")
    lines = list[str](example.splitlines())
    if rng.random() < 0.9:
        at = int(rng.choice([k for k, line in enumerate(lines) if "=" in line]))
        key = lines[at].partition("=")[0]
        junk = ["nan", "inf", '"text"', "-1", "1e300", "[]", "{}", "true", "[1, 'a']", "", "10000000000000000000000",
                '{ type = "GAMP" }', '{ start = 1, stop = 0, num = -1 }', "[[1.0], [2.0]]", "1979-05-27"]  # fmt: skip
        lines[at] = f"{key}= {junk[rng.integers(len(junk))]}"
    path = FOLDER / "problem.toml"
    path.write_text("\n".join(lines))
    verb = str(rng.choice(["solve", "thresholds"]))
    changed = [line for line in lines if line not in EXAMPLE]
    return Call(f"asymptotix {verb} with {changed}", lambda: _invoke(verb, path))


def _invoke(verb: str, path: Path) -> None:
    answer = CliRunner().invoke(app, [verb, str(path)])
    if answer.exit_code not in (0, 2):
        raise answer.exception or RuntimeError(f"exit code {answer.exit_code}")
    if answer.exit_code == 2:
        raise ValueError(answer.stderr)


#: Stage -> its share of the calls and what makes one.
STAGES: dict[str, tuple[float, Callable[[np.random.Generator], Call]]] = {
    "describe": (0.40, describe),
    "solve": (0.18, solve),
    "simulate": (0.10, simulate),
    "thresholds": (0.05, thresholds),
    "differentiate": (0.05, differentiate),
    "read": (0.10, read),
    "load": (0.08, load),
    "command line": (0.04, command),
}
