"""What notebooks show of objects, and tables of pandas."""

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.problem import Outcome
from asymptotix.core.showing.notebook import MOST_BYTES
from toy import ToyLearning, ToyRegression, ToyRun

mpl.use("agg")
PROBLEM = ToyLearning(ToyRegression(indices=2))


@dataclass(frozen=True)
class Nasty(asx.Problem):
    """Words that would break a page, an array, a function, and a point that fails."""

    name: str = "<script>alert(1)</script>"
    data: Any = None
    link: Callable | None = np.tanh
    controls = ("alpha",)

    def solve_points(self, points, *, start, tolerance, progress):
        for i, point in enumerate(points):
            if point["alpha"] > 1:
                raise ArithmeticError("<b>too large</b> & more")
            yield i, Outcome({"value": 1.0, "word": "<i>"})


class Balanced(HTMLParser):
    """Counts tags that were opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> list[str]:
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not {"script", "i"} & set(parser.seen)
    return parser.seen


def test_a_result_shows_its_points_its_variables_and_a_picture():
    page = asx.solve(PROBLEM, alpha=[0.2, 0.5, 1.5], noise=0.0)._repr_html_()
    assert "img" in checked(page)
    for words in ("theory of ToyLearning", "3 values of alpha", "noise = 0", "✓ converged", "test_error", "1e-06"):
        assert words in page, words
    assert len(re.findall('base64,[^"]*', page)[0]) <= MOST_BYTES + len("base64,")


def test_what_cannot_be_drawn_shows_its_table():
    grids = asx.solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.1])
    for shown in (grids, grids.isel(alpha=0, noise=0), asx.thresholds(PROBLEM), PROBLEM, ToyRun(), PROBLEM.model):
        page = shown._repr_html_()
        assert "img" not in checked(page)
        assert "table" in checked(page)
    assert "index 1: 0.1, index 2: 0.2" in asx.thresholds(PROBLEM)._repr_html_()


def test_a_comparison_shows_its_table():
    runs = asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5, 0.8], dim=10, seeds=3)
    page = asx.compare(asx.solve(PROBLEM, alpha=[0.2, 0.5, 0.8]), runs)._repr_html_()
    assert {"table", "img"} <= set(checked(page))
    assert "comparison of ToyRun with theory" in page
    assert "<details>" in page


def test_text_from_outside_is_escaped_and_failures_are_told():
    problem = Nasty(data=np.zeros((100, 7)))
    with pytest.warns(asx.ConvergenceWarning):
        result = asx.solve(problem, alpha=[0.5, 2.0])
    page = result._repr_html_()
    checked(page)
    assert "✗ failed" in page
    assert "&lt;b&gt;too large&lt;/b&gt; &amp; more" in page
    described = problem._repr_html_()
    checked(described)
    for words in ("&lt;script&gt;", "array of shape 100 × 7", "tanh"):
        assert words in described


def test_without_matplotlib_there_is_no_picture_and_no_error(monkeypatch):
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    result = asx.solve(PROBLEM, alpha=[0.2, 0.5])
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "img" not in checked(result._repr_html_())


def test_showing_never_raises(monkeypatch):
    result = asx.solve(PROBLEM, alpha=[0.2, 0.5])
    result.ds = result.ds.drop_vars("status_code")
    assert result._repr_html_().startswith("<pre>&lt;asymptotix theory")

    def broken(self: Any) -> str:
        raise RuntimeError

    monkeypatch.setattr(ToyLearning, "__repr__", broken)
    checked(result._repr_html_())


def test_table_has_a_row_per_point():
    result = asx.solve(PROBLEM, alpha=[0.2, 1.5], noise=[0.0, 1.0], weight_decay=0.0)
    table = result.to_dataframe()
    assert table.shape[0] == 4
    assert table.alpha.tolist() == [0.2, 0.2, 1.5, 1.5]
    assert table.weight_decay.tolist() == [0.0] * 4
    np.testing.assert_allclose(table["overlap[index 2, index 2]"], [0.2, 0.1, 1.0, 0.5])
    np.testing.assert_allclose(table["overlap_err[index 1, index 2]"], 1e-6)
    assert table.status.tolist() == result.status.values.ravel().tolist()
    assert result.isel(alpha=0, noise=1).to_dataframe()["overlap[index 1, index 1]"].tolist() == [0.1]


def test_table_of_one_variable_has_a_row_per_entry():
    result = asx.solve(PROBLEM, alpha=[0.2, 0.5])
    table = result.to_dataframe("overlap")
    assert list(table) == ["alpha", "index", "index_other", "overlap", "overlap_err", "status"]
    for row in table.to_dict("records"):
        expected = result.overlap.sel(alpha=row["alpha"], index=row["index"], index_other=row["index_other"])
        assert row["overlap"] == expected
    runs = asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=10, seeds=3)
    trace = runs.to_dataframe("overlap_trace")
    assert len(trace) == runs.overlap_trace.size
    assert trace.iteration.min() == 1
    assert not [name for name in runs.to_dataframe() if "trace" in name]
    with pytest.raises(KeyError, match="coordinate 'alpha'"):
        result.to_dataframe("alpha")
    with pytest.raises(KeyError, match="has no 'overlpa'"):
        result.to_dataframe("overlpa")
