"""Claims of the papers: the rules that judge them, and that figures and papers' files name the same claims."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from asymptotix import figures
from asymptotix.figures.making.claims import PublishedClaim, PublishedFigure

FOLDER = Path(figures.__file__).parent
ERRATA = Path(__file__).parents[2] / "examples" / "errata"
NAMES = [name for name in figures.FIGURES if not name.startswith("atlas/")]


def holds(rule, value, error=None, **numbers):
    return PublishedClaim("x", "yes", "text", rule, **numbers).judged(value, "found", error).holds


@pytest.mark.parametrize(
    ("published", "found", "error", "rounding", "answer"),
    [(0.14, 0.1436, 0.0, 0.005, True), (0.14, 0.1855, 1e-7, 0.005, False), (0.14, 0.16, 0.006, 0.005, True)],
)
def test_a_number_holds_within_its_rounding_and_three_errors(published, found, error, rounding, answer):
    claim = PublishedClaim("x", published, "text", "equals", rounding=rounding).judged(found, error=error)
    assert claim.holds is answer
    assert claim.published == "0.14"


def test_above_and_below_need_more_than_the_errors_if_there_are_any():
    assert [holds("above", value, 0.1, limit=1.0) for value in (1.4, 1.2, 0.8, 0.6)] == [True, None, None, False]
    assert [holds("below", value, 0.1, limit=1.0) for value in (1.4, 1.2, 0.8, 0.6)] == [False, None, None, True]
    assert [holds("above", value, 0.1, limit=1.0, errors=1.0) for value in (1.2, 0.8)] == [True, False]
    assert [holds("above", value, limit=1.0) for value in (1.2, 1.0, np.nan)] == [True, False, False]
    assert [holds("below", value, limit=1.0) for value in (1.2, 1.0, 0.8)] == [False, False, True]
    assert holds("above", 2.0, np.nan) is None  # a single run has no error


def test_intervals_and_orders():
    assert [holds("within", value, limits=[53, 141]) for value in (52, 53, 141, np.inf)] == [False, True, True, False]
    assert holds("ordered", [0.1, 0.2, 0.3]) is True
    assert holds("ordered", [0.1, 0.2, 0.2]) is False
    assert holds("ordered", [0.1, 0.2], [0.04, 0.0]) is False
    assert holds("ordered", [np.array([1.0, 2.0]), np.array([2.0, 1.0])]) is False
    assert [holds("given", answer) for answer in (True, False, None)] == [True, False, None]


def test_words_of_the_figure_are_inserted():
    claim = PublishedClaim("at {skip:g}", "{released:g}", "text", "equals", rounding=0.01, script="a")
    judged = claim.judged(0.245, error=0.001, skip=2.0, released=0.25)
    assert (judged.what, judged.published, judged.found) == ("at 2", "0.25", "0.2450 ± 0.0010")
    assert (judged.holds, judged.script) == (True, "examples/errata/a.py")


@cache
def module(path: Path) -> tuple[dict[str, ast.FunctionDef], dict[str, tuple[Path, str]], dict[str, Path]]:
    """Functions of a file, functions that it imports (file, name), and modules that it imports."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions, imported, modules = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}, {}, {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                if (file := base / f"{alias.name}.py").exists():
                    modules[alias.asname or alias.name] = file
                elif (file := base.with_suffix(".py")).exists() and file.is_relative_to(FOLDER):
                    imported[alias.asname or alias.name] = file, alias.name
    return functions, imported, modules


def called_from(path: Path, name: str, seen: set[tuple[Path, str]]) -> list[ast.FunctionDef]:
    """The function and all functions of figures that it calls, directly or not."""
    functions, imported, modules = module(path)
    if name in imported:
        return called_from(*imported[name], seen)
    if name not in functions or (path, name) in seen:
        return []
    seen.add((path, name))
    found = [functions[name]]
    for node in ast.walk(functions[name]):
        if isinstance(node, ast.Name):
            found += called_from(path, node.id, seen)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += called_from(modules[node.value.id], node.attr, seen)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_judges_the_claims_of_its_paper_and_no_others(name):
    make = figures.FIGURES[name].make.func
    nodes = [
        node
        for function in called_from(Path(make.__code__.co_filename), make.__name__, set())
        for node in ast.walk(function)
    ]
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    judged = {
        node.args[0].value
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "said"
        if isinstance(node.args[0], ast.Constant)
    }
    own = set(PublishedFigure(name).claims)
    of_paper = {claim for other in NAMES if other[:4] == name[:4] for claim in PublishedFigure(other).claims}
    assert words & of_paper == own
    assert judged <= own
    assert judged


def test_rules_are_known_and_scripts_are_there():
    claims = [claim for name in NAMES for claim in PublishedFigure(name).claims.values()]
    assert {claim.rule for claim in claims} == {"equals", "above", "below", "within", "ordered", "given"}
    scripts = {claim.script for claim in claims} - {""}
    assert len(scripts) > 10
    assert [script for script in scripts if not (ERRATA / f"{script}.py").exists()] == []
