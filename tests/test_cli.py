import csv
import io
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from asymptotix import AttentionPaths, BayesOptimal, MultiIndex, PathPosterior, cli, compare
from asymptotix.core.result import Result, load
from asymptotix.core.verbs import simulate, solve, thresholds
from toy import ToyLearning, ToyRegression, ToyRun

ROOT = Path(__file__).parents[1]

TOY = """
imports = ["toy"]

[problem]
type = "ToyLearning"
weight_decay = 0.25

[problem.model]
type = "ToyRegression"
indices = 2
noise = 0.5

[solve]
alpha = { start = 0.25, stop = 1.0, num = 4 }

[simulate]
algorithm = { type = "ToyRun", iterations = 3 }
alpha = [0.5, 2.0]
dim = 100
seeds = 2

[thresholds]
"""
PROBLEM = ToyLearning(ToyRegression(indices=2, noise=0.5), weight_decay=0.25)


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def without_a_width(monkeypatch):
    """A runner of tests may have set one."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def toml(tmp_path):
    def write(text=TOY, *, replace=("", "")):
        file = tmp_path / "problem.toml"
        file.write_text(text.replace(*replace), encoding="utf-8")
        return file

    return write


def assert_one_sentence(result, *parts):
    """Exit code 2 and one line on standard error that holds all the parts."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    for part in parts:
        assert part in line


# ------------------------------------------------------------------------- the same numbers as in Python


def test_solve_gives_the_same_numbers_as_python(toml, tmp_path):
    out = tmp_path / "curve.nc"
    result = run("solve", toml(), "--out", out)
    assert result.exit_code == 0, result.output
    assert load(out).ds.equals(solve(PROBLEM, alpha=np.linspace(0.25, 1.0, 4)).ds)
    assert load(out).problem == PROBLEM


def test_simulate_gives_the_same_numbers_as_python(toml, tmp_path):
    out = tmp_path / "runs.nc"
    result = run("simulate", toml(), "--out", out)
    assert result.exit_code == 0, result.output
    expected = simulate(PROBLEM, ToyRun(iterations=3), alpha=[0.5, 2.0], dim=100, seeds=2)
    assert load(out).ds.equals(expected.ds)
    assert load(out).algorithm == ToyRun(iterations=3)


@pytest.mark.parametrize("verb", ["solve", "simulate"])
def test_resumed_work_is_not_done_again(toml, tmp_path, monkeypatch, verb):
    file, out, again = toml(), tmp_path / "first.nc", tmp_path / "again.nc"
    assert run(verb, file, "--out", out).exit_code == 0
    for owner, method in ((ToyLearning, "solve_points"), (ToyRun, "run_points")):
        monkeypatch.setattr(owner, method, lambda *_, **__: pytest.fail("done again"))
    result = run(verb, file, "--resume", out, "--out", again)
    assert result.exit_code == 0, result.output
    assert load(again).ds.equals(load(out).ds)
    assert_one_sentence(run(verb, file, "--resume", tmp_path / "none.nc"), "no file")


def test_thresholds_give_the_same_numbers_as_python_over_a_field(toml, tmp_path):
    out = tmp_path / "thresholds.nc"
    file = toml(replace=("[thresholds]", "[thresholds]\nnoise = [0.0, 0.5]"))
    result = run("thresholds", file, "--out", out)
    assert result.exit_code == 0, result.output
    assert load(out).ds.equals(thresholds(PROBLEM, noise=[0.0, 0.5]).ds)


FIRST_LAYER_HELD = """
[problem]
type = "BayesOptimal"
model = { type = "DeepAttention", layers = 2, tokens = 2 }

[solve]
alpha = 0.1
tolerance = 0.02
fixed = { 0 = 0.0 }
"""


@pytest.mark.slow
def test_an_overlap_that_is_held(toml, tmp_path):
    out = tmp_path / "held.nc"
    result = run("solve", toml(FIRST_LAYER_HELD), "--out", out)
    assert result.exit_code == 0, result.output
    assert load(out).settings["fixed"] == {"0": 0.0}
    other = toml(FIRST_LAYER_HELD, replace=("0 = 0.0", "0 = 0.5"))
    assert_one_sentence(run("solve", other, "--resume", out), "resume", "differs in fixed")
    wrong = toml(FIRST_LAYER_HELD, replace=("0 = 0.0", "7 = 0.0"))
    assert_one_sentence(run("solve", wrong), "every index of fixed that is not one of the labels", "got 7")


ONE_LAYER = """
[problem]
type = "BayesOptimal"
model = { type = "DeepAttention", layers = 1, tokens = 2 }

[thresholds]
which = ["weak_recovery", "exact_recovery_informed"]
"""


def test_some_of_the_thresholds(toml, tmp_path):
    out = tmp_path / "thresholds.nc"
    result = run("thresholds", toml(ONE_LAYER), "--out", out)
    assert result.exit_code == 0, result.output
    found = load(out)
    assert found.settings["which"] == ("weak_recovery", "exact_recovery_informed")
    assert found.weak_recovery.item() == pytest.approx(1 / 6, rel=1e-12)  # a closed form
    assert "exact_recovery" not in found.ds
    assert not re.search(r"staircase|exact_recovery ", result.stdout)
    other = toml(ONE_LAYER, replace=(', "exact_recovery_informed"]', "]"))
    assert_one_sentence(run("thresholds", other, "--resume", out), "resume", "differs in which")
    wrong = toml(ONE_LAYER, replace=("exact_recovery_informed", "spinodal"))
    assert_one_sentence(run("thresholds", wrong), "which must be one of", "'staircase'", "got 'spinodal'")


def test_thresholds_need_no_section_of_their_own(toml):
    assert run("thresholds", toml(replace=("[thresholds]", ""))).exit_code == 0


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0.3", 0.3),
        ("[0.3, 0.6]", [0.3, 0.6]),
        ("{ start = 0.1, stop = 10, num = 3, spacing = 'log' }", [0.1, 1.0, 10.0]),
        ("{ start = 1, stop = 2, num = 3, spacing = 'linear' }", [1.0, 1.5, 2.0]),
    ],
)
def test_controls_are_numbers_lists_or_grids(toml, written, expected):
    file = toml(replace=("{ start = 0.25, stop = 1.0, num = 4 }", written))
    _, section = cli.read_problem(file, "solve")
    np.testing.assert_allclose(section["alpha"], expected, rtol=1e-15)  # rounding of geomspace


# ------------------------------------------------------------------------- arrays and functions of a problem


PATHS = """
[problem]
type = "PathPosterior"
temperature = 0.1
inputs = { npz = "data.npz", array = "tokens" }
labels = { npz = "data.npz", array = "labels" }
network = { type = "AttentionPaths", query_key = [{ npz = "data.npz", array = "layer_1" }], readout = 0 }

[solve]
width = [10, inf]
"""


def test_arrays_come_from_a_file_beside(toml, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "tokens": rng.standard_normal((8, 3, 4)),
        "labels": rng.choice([-1.0, 1.0], 8),
        "layer_1": rng.standard_normal((2, 4, 4)),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    found = run("solve", toml(PATHS), "--out", tmp_path / "curve.nc")
    assert found.exit_code == 0
    network = AttentionPaths(query_key=[arrays["layer_1"]], readout=0)
    problem = PathPosterior(network, arrays["tokens"], arrays["labels"], temperature=0.1)
    expected = solve(problem, width=[10, np.inf], progress=False)
    np.testing.assert_array_equal(load(tmp_path / "curve.nc").order_parameter, expected.order_parameter)
    entries = [column for column in expected.to_dataframe() if column.startswith("order_parameter[")]
    assert len(entries) == 4
    assert entries[1] == "order_parameter[1, 2]"  # heads, which count from one
    assert [entry for entry in entries if entry not in found.stdout] == []


def npy(shape):
    """The header of an array, as NumPy writes it before the numbers."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(tokens):
    with zipfile.ZipFile(file := io.BytesIO(), "w") as members:
        members.writestr("tokens.npy", tokens)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["there is no file", "data.npz", "'tokens'"]),
        (b"", ["data.npz is no .npz file"]),
        (b"not an archive", ["data.npz"]),
        ({"other": np.zeros(2)}, ["data.npz has no array 'tokens'; it has other"]),
        ({"tokens": np.array([{}, None])}, ["array 'tokens' of", "data.npz", "Object arrays cannot be loaded"]),
        (archive(npy((10**13,))), ["not enough memory", "72.8 TiB"]),  # by its header; the file has 100 bytes
        (archive(npy((-1,))), ["array 'tokens' of", "data.npz", "negative dimensions"]),
        (archive(npy((9,))[:-9]), ["array 'tokens' of", "data.npz", "header"]),
        (archive(npy((2,)) + bytes(16)).replace(bytes(16), b"changed " * 2), ["array 'tokens' of", "Bad CRC-32"]),
    ],
)
def test_a_file_without_the_array_is_named(toml, tmp_path, content, parts):
    if isinstance(content, dict):
        np.savez(tmp_path / "data.npz", **content)
    elif content is not None:
        (tmp_path / "data.npz").write_bytes(content)
    assert_one_sentence(run("solve", toml(PATHS)), *parts)


LINK = """
[problem]
type = "BayesOptimal"
model = { type = "MultiIndex", link = "my_links:product", indices = 2 }

[solve]
alpha = 0.5
"""


def test_a_function_is_named_by_its_module(toml, tmp_path):
    (tmp_path / "my_links.py").write_text("product = lambda z: z[0] * z[1]\nnumber = 3\n")
    file = toml(LINK)
    assert_one_sentence(run("solve", file), "my_links", "--allow-imports")
    problem, _ = cli.read_problem(file, "solve", allow_imports=True)
    assert isinstance(problem, BayesOptimal)
    assert isinstance(problem.model, MultiIndex)
    assert problem.model.link([2.0, 3.0]) == 6.0
    other = toml(LINK, replace=("product", "number"))
    assert_one_sentence(run("solve", other, "--allow-imports"), "'my_links:number'", "holds 3")
    other = toml(LINK, replace=("product", "nothing"))
    assert_one_sentence(run("solve", other, "--allow-imports"), "'my_links:nothing'", "none of that name")


@pytest.mark.parametrize("named", ["builtins:exit", "builtins:input", "os:abort", "idlelib.idle:main", "antigravity:x"])
def test_a_function_of_the_standard_library_is_refused(toml, named):
    """``builtins:exit`` ended the program without a message, and ``builtins:input`` waited for the terminal."""
    parts = [f"'{named}'", "standard library", "imports = [...]", "beside the file"]
    assert_one_sentence(run("solve", toml(LINK, replace=("my_links:product", named))), *parts)
    imported = toml(f'imports = ["{named.partition(":")[0]}"]\n' + LINK, replace=("my_links:product", named))
    if "antigravity" not in named and "idlelib" not in named:  # these do something when they are imported
        assert_one_sentence(run("solve", imported), *parts)


def test_a_function_of_an_installed_module_needs_imports(toml):
    file = toml(LINK, replace=("my_links:product", "jax.numpy:prod"))
    assert_one_sentence(run("solve", file), "'jax.numpy:prod' must be imported", "imports = ['jax.numpy']")
    for named in ("jax", "jax.numpy"):
        file = toml(f'imports = ["{named}"]\n' + LINK, replace=("my_links:product", "jax.numpy:prod"))
        problem, _ = cli.read_problem(file, "solve")
        assert isinstance(problem, BayesOptimal)
        assert isinstance(problem.model, MultiIndex)
        assert problem.model.link is jnp.prod


@pytest.mark.parametrize("place", ["key", "section", "field", "type", "grid", "text"])
def test_escapes_in_a_file_do_not_reach_the_terminal(toml, place):
    """ESC [2J clears it; a file may come from anywhere."""
    key = '"\\u001b[2Jfoo"'
    text = {
        "key": f"{key} = 1\n" + TOY,
        "section": TOY.replace("[solve]", f"[{key}]"),
        "field": TOY.replace("noise = 0.5", f"{key} = 0.5"),
        "type": TOY.replace('"ToyLearning"', key),
        "grid": TOY.replace("num = 4", f"num = 4, {key} = 1"),
        "text": TOY.replace("noise = 0.5", f"noise = {key}"),
    }[place]
    result = run("solve", toml(text))
    assert_one_sentence(result, "x1b[2Jfoo")
    assert "\x1b" not in result.stderr


# ------------------------------------------------------------------------- files of results


def test_a_table_is_written_where_the_suffix_asks_for_one(toml, tmp_path):
    assert run("solve", toml(), "--out", tmp_path / "curve.csv").exit_code == 0
    header, *rows = (tmp_path / "curve.csv").read_text().splitlines()
    assert "alpha" in header
    assert len(rows) >= 4
    cells = [cell for row in csv.reader([header, *rows]) for cell in row]
    assert not any(cell.startswith(("=", "+", "@", "\t")) for cell in cells)  # a spreadsheet would compute them
    assert '"overlap[index 1, index 2]"' in header  # the column of a number has the name that the printed table has
    assert_one_sentence(run("solve", toml(), "--out", tmp_path / "curve.txt"), "must end in .nc", "curve.txt")


def test_files_are_compared_and_drawn(toml, tmp_path):
    theory, runs, picture = (tmp_path / name for name in ("curve.nc", "runs.nc", "overlap.png"))
    assert run("solve", toml(), "--out", theory).exit_code == 0
    assert run("simulate", toml(), "--out", runs).exit_code == 0
    found = run("compare", theory, runs)
    assert found.exit_code == 0
    assert found.stdout.strip() == compare(load(theory), load(runs)).table().strip()
    assert run("plot", "test_error", theory, "--out", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert_one_sentence(run("plot", "nothing", theory, "--out", picture), "nothing", "test_error")
    assert_one_sentence(run("compare", runs, theory), "theory")


# ------------------------------------------------------------------------- what is printed


def test_table_has_a_row_per_point_with_errors_and_status(toml):
    lines = run("solve", toml(replace=("noise = 0.5", "noise = 0.0")).resolve()).stdout.splitlines()
    assert "ToyLearning" in lines[0]
    headers = [line for line in lines if "status" in line]
    assert all("alpha" in header for header in headers)
    for name in ("overlap[index 1, index 1]", "overlap[index 2, index 2]", "test_error"):
        assert sum(name in header for header in headers) == 1
    assert max(map(len, lines[1:])) <= 120  # of a pipe, which has no width of its own
    row = next(line for line in lines if re.match(r"│ +0\.5 ", line))
    assert "0.4000000 ± 0.0000010" in row  # 0.5 / (1 + weight_decay), toy's error 1e-6
    assert "converged" in row


def test_status_of_every_point_is_shown_and_warnings_take_one_line(toml, tmp_path):
    (tmp_path / "failing.py").write_text(
        "from dataclasses import dataclass\n"
        "from asymptotix.core.problem import Outcome, Problem\n"
        "@dataclass(frozen=True)\n"
        "class FailingToy(Problem):\n"
        "    controls = ('alpha',)\n"
        "    def solve_points(self, points, *, start, tolerance, progress):\n"
        "        yield 0, Outcome({'overlap': 0.5}, status='still moving [after 9 steps]', converged=False)\n"
        "        yield 1, Outcome({'overlap': 0.6})\n"
    )
    text = 'imports = ["failing"]\n[problem]\ntype = "FailingToy"\n[solve]\nalpha = [1, 2]\n'
    result = run("solve", toml(text), "--allow-imports")
    assert result.exit_code == 0
    assert "still moving [after 9 steps]" in result.stdout
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("Warning: 1 of 2 points did not converge")


def test_single_point_is_a_list_of_quantities(toml):
    lines = run("thresholds", toml()).stdout.splitlines()
    assert any(re.search(r"│ weak_recovery\[index 2\] +│ +0\.3 │", line) for line in lines)
    assert any(re.search(r"│ exact_recovery +│ +inf │", line) for line in lines)
    assert any(re.search(r"│ status +│ +converged │", line) for line in lines)


def test_numbers_are_shown_even_if_they_cannot_be_written(toml, tmp_path, monkeypatch):
    def disk_is_full(self, path):
        raise OSError("no space left on device")

    monkeypatch.setattr(Result, "save", disk_is_full)
    result = run("solve", toml(), "--out", tmp_path / "curve.nc")
    assert result.exit_code == 2
    assert result.stdout.count("converged") == 8  # two tables of four points
    assert result.stderr.endswith("\nError: no space left on device\n")


def test_an_interrupt_before_the_first_point_leaves_the_file_as_it_was(toml, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    file, out = toml(), tmp_path / "curve.nc"
    assert run("solve", file, "--out", out).exit_code == 0
    before = out.read_bytes()
    monkeypatch.setattr(ToyLearning, "solve_points", interrupted)
    result = run("solve", file, "--out", out)
    assert result.exit_code == 130
    assert f"nothing is finished, and {out} is as it was" in result.stdout
    assert out.read_bytes() == before


def test_narrow_terminal_gets_several_tables_and_no_cut_number(toml, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    problem, section = cli.read_problem(toml(), "solve")
    result = solve(problem, **section)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cli.show(result)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("status" in line for line in lines) > 1
    overlap = "0.1333333 ± 0.0000010"  # 0.25 / (1 + noise) / (1 + weight_decay)
    assert sum(line.count(overlap) for line in lines) == 2


def test_what_does_not_fit_into_the_table_is_named(toml):
    assert "not shown, but written by --out: overlap_trace" in run("simulate", toml()).stdout


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.712345, 0.00123, "0.7123 ± 0.0012"),
        (1234.5, 21.0, "1234 ± 21"),
        (1e-9, 3e-15, "1e-09 ± 3.0e-15"),
        (0.25, 0.0, "0.25"),
        (0.25, float("nan"), "0.25"),
        (float("inf"), 0.1, "inf"),
        (float("nan"), 0.1, "nan"),
    ],
)
def test_numbers_end_where_their_error_begins(value, error, text):
    assert cli.format_number(value, error) == text


# ------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("[solve]", "[slove]", ["unknown section", "slove", "solve"]),
        ("[solve]", "tolerance = 1\n[solve]", ["ToyRegression", "tolerance"]),
        ("alpha = {", "alhpa = {", ["alpha"]),
        ("alpha = {", "skip = 1.0\nalpha = {", ["skip", "noise"]),
        ("indices = 2", "indexes = 2", ["ToyRegression", "indexes", "indices"]),
        ('"ToyLearning"', '"ToyLearner"', ["ToyLearner", "ToyLearning"]),
        ("num = 4", "nmu = 4", ["solve.alpha", "nmu", "num"]),
        ("num = 4", "spacing = 'log'", ["solve.alpha", "num"]),
        ("num = 4", "num = 0", ["solve.alpha.num", "at least 1", "0"]),
        ("num = 4", "num = 4, spacing = 'cubic'", ["solve.alpha.spacing", "cubic", "linear"]),
        ("start = 0.25", "start = 0, spacing = 'log'", ["solve.alpha.start", "positive"]),
        ("start = 0.25", "start = -1", ["alpha must be positive", "-1"]),
        ("start = 0.25", "start = nan", ["solve.alpha.start", "nan"]),
        ("noise = 0.5", "noise = -0.5", ["noise must be non-negative", "-0.5"]),
        ("indices = 2", "indices 2", ["problem.toml", "not valid TOML", "line"]),
        ('imports = ["toy"]', 'imports = ["no_such_module"]', ["no_such_module"]),
        ('imports = ["toy"]', 'imports = "toy"', ["imports must be a list", "toy"]),
        ("[problem]", "[thresholds.problem]", ["has no section [problem]"]),
    ],
)
def test_bad_file_is_one_sentence_that_names_the_culprit(toml, old, new, parts):
    text = TOY.replace("\n[thresholds]\n", "")
    if old == "[problem]":
        text = text.replace("[problem.model]", "[thresholds.model]")
    assert old in text
    assert_one_sentence(run("solve", toml(text, replace=(old, new))), *parts)


def test_section_of_the_verb_must_be_there(toml):
    text = TOY[: TOY.index("[solve]")]
    assert_one_sentence(run("solve", toml(text)), "problem.toml has no section [solve]", "[problem]")
    assert_one_sentence(run("solve", toml("solve = 3\n" + text)), "must be a section [solve]", "3")


@pytest.mark.parametrize("name", ["algorithm", "seeds"])
def test_simulate_says_what_it_needs(toml, name):
    text = re.sub(rf"^{name} = .*$", "", TOY, flags=re.MULTILINE)
    assert_one_sentence(run("simulate", toml(text)), "[simulate]", f"needs {name}")


def test_missing_file_and_unwritable_output_are_refused_before_any_work(toml, tmp_path):
    assert_one_sentence(run("solve", tmp_path / "none.toml"), "there is no file", "none.toml")
    assert_one_sentence(run("solve", toml(), "--out", tmp_path / "no" / "x.nc"), "there is no folder", "no")
    assert_one_sentence(run("solve", toml(), "--out", tmp_path), "is a folder")


def test_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert_one_sentence(run("solve", tmp_path / "binary.toml"), "binary.toml is not valid TOML")


BESIDE = """
imports = ["beside"]
[problem]
type = "ToyLearning"
model = { type = "ToyRegression" }
[solve]
alpha = 1
"""


@pytest.mark.parametrize("verb", ["solve", "simulate", "thresholds"])
def test_a_module_beside_the_file_is_run_only_when_that_is_allowed(toml, tmp_path, monkeypatch, verb):
    text = BESIDE + "[simulate]\nalpha = 1\nseeds = 1\ndim = 10\nalgorithm = { type = 'ToyRun' }\n"
    (tmp_path / "beside.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as `python -m asymptotix` does
    assert_one_sentence(run(verb, toml(text)), "problem.toml", "'beside'", "--allow-imports")
    assert not (tmp_path / "beside.py.ran").exists()
    before = list(sys.path)
    result = run(verb, toml(text), "--allow-imports")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "beside.py.ran").exists()
    assert sys.path == before


def test_a_module_beside_the_file_does_not_stand_in_for_an_installed_one(toml, tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("raise SystemExit('the wrong one')\n")  # of the standard library
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--allow-imports"]):
        monkeypatch.delitem(sys.modules, "colorsys", raising=False)
        result = run("solve", toml(BESIDE, replace=("beside", "colorsys")), *options)
        assert result.exit_code == 0, result.output


def test_a_module_that_cannot_be_imported_is_named(toml, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("1 / 0\n")
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    assert_one_sentence(run("solve", toml(BESIDE), "--allow-imports"), "'beside'", "ZeroDivisionError")
    assert_one_sentence(run("solve", toml(BESIDE, replace=("beside", ".")), "--allow-imports"), "'.'")


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (MemoryError("Unable to allocate 1.8 TiB"), ["not enough memory", "1.8 TiB"]),
        (MemoryError(), ["not enough memory"]),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"), ["not enough memory", "99 bytes"]),
        (RecursionError("maximum recursion depth exceeded"), ["nested too deeply"]),
        (OverflowError("int too large to convert to float"), ["int too large"]),
    ],
)
def test_exhausted_memory_and_depth_are_one_sentence(toml, monkeypatch, error, parts):
    monkeypatch.setattr("asymptotix.core.verbs.solve", lambda *_, **__: (_ for _ in ()).throw(error))
    assert_one_sentence(run("solve", toml()), *parts)


def test_a_mistake_of_ours_keeps_its_traceback(toml, monkeypatch):
    monkeypatch.setattr("asymptotix.core.verbs.solve", lambda *_, **__: {}["no such key"])
    assert isinstance(run("solve", toml()).exception, KeyError)


def test_what_memory_errors_of_the_libraries_are():
    """Both arrive as what the command line knows them by."""
    import jax

    with pytest.raises(MemoryError):
        np.ones(2**50)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.jit(lambda: jax.numpy.ones(2**50).cumsum())().block_until_ready()


def test_a_file_that_is_nested_too_deeply_is_one_sentence(toml):
    assert_one_sentence(run("solve", toml("a = " + "[" * 10**5 + "]" * 10**5)), "nested too deeply")


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_lets_the_traceback_through(tmp_path, place):
    arguments = ["solve", tmp_path / "none.toml"]
    result = run("--debug", *arguments) if place == "before" else run(*arguments, "--debug")
    assert isinstance(result.exception, FileNotFoundError)


# ------------------------------------------------------------------------- help, version, the program


def test_help_shows_a_whole_file_and_every_command(monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = run("--help").stdout
    squeezed = [line.strip() for line in shown.splitlines()]
    for line in cli.EXAMPLE.splitlines():
        assert line in squeezed, "a line of the example is wrapped or missing"
    for command in ("demo", "solve", "simulate", "thresholds"):
        assert f"asymptotix {command}" in shown


def test_example_file_is_the_one_in_the_help():
    assert (ROOT / "examples" / "two_layers.toml").read_text(encoding="utf-8") == cli.EXAMPLE


def test_no_arguments_show_the_help():
    assert "Usage" in run().output


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_program_answers_at_once_without_importing_jax(option):
    program = (
        "import sys, asymptotix.cli\n"
        "try: asymptotix.cli.main()\n"
        "finally: sys.exit('jax was imported' if 'jax' in sys.modules else 0)"
    )
    begun = time.perf_counter()
    finished = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True)
    took = time.perf_counter() - begun
    assert finished.returncode == 0, finished.stderr
    assert "asymptotix" in finished.stdout
    assert took < 3  # measured 0.3 s; a loaded machine is slower, importing JAX alone would show above


def test_program_in_a_process_of_its_own(toml):
    file = toml()
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ["PYTHONPATH"]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", "from asymptotix.cli import main; main()"]
    good = subprocess.run([*command, "solve", file], capture_output=True, text=True, env=environment)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.count("converged") == 8  # two tables of four points
    file.write_text("alpha = [")
    bad = subprocess.run([*command, "solve", file], capture_output=True, text=True, env=environment)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
    assert len(bad.stderr.splitlines()) == 1


def test_reproduce_lists_the_figures_and_makes_one(tmp_path):
    listed = CliRunner().invoke(cli.app, ["reproduce"])
    assert listed.exit_code == 0
    for words in ("deep/fig1-left", "training/fig3-right", "paths/fig2", "atlas/thresholds", "(from trec"):
        assert words in listed.output
    made = CliRunner().invoke(cli.app, ["reproduce", "training/fig3-right", "--out", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "training" / "fig3-right" / "record.md").exists()
    assert "1 of" in (tmp_path / "index.html").read_text()
    unknown = CliRunner().invoke(cli.app, ["reproduce", "training/fig33"])
    assert unknown.exit_code == 2
    assert "did you mean" in unknown.output
    both = CliRunner().invoke(cli.app, ["reproduce", "training/fig3-right", "--all"])
    assert both.exit_code == 2
