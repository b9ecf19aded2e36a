"""Plots that are combined: colours, labels, kinks at thresholds, and labels beside the curves."""

from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

import asymptotix as asx
from asymptotix.core.drawing.kinks import with_kinks
from asymptotix.core.drawing.threshold_labels import _occupied
from asymptotix.core.plot import PALETTE, mark_thresholds, plot_comparison
from toy import ToyLearning, ToyRegression, ToyRun

mpl.use("agg")
PROBLEM = ToyLearning(ToyRegression(indices=2))
GRID = np.linspace(0.15, 1.5, 8)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def theory() -> asx.Result:
    return asx.solve(PROBLEM, alpha=GRID)


@pytest.fixture(scope="module")
def runs() -> asx.Result:
    return asx.simulate(PROBLEM, ToyRun(), alpha=[0.3, 0.9], dim=50, seeds=3)


def test_keywords_of_lines_reach_the_line(theory, runs):
    ax = theory.plot("test_error", color="crimson", label="mine", lw=3, ls="--", marker="s", alpha=0.5)
    line = ax.lines[0]
    assert (line.get_color(), line.get_label(), line.get_linewidth()) == ("crimson", "mine", 3)
    assert (line.get_linestyle(), line.get_marker(), line.get_alpha()) == ("--", "s", 0.5)
    bars = runs.plot("test_error", color="green", label="runs", marker="^").containers[0]
    assert (bars.lines[0].get_color(), bars.get_label(), bars.lines[0].get_marker()) == ("green", "runs", "^")
    with pytest.raises(AttributeError, match="colour"):
        theory.plot("test_error", colour="red")


def test_colours_of_entries(theory):
    ax = theory.plot("overlap", color=["red", "blue"], label="mine")
    assert [line.get_color() for line in ax.lines] == ["red", "blue"]
    assert [line.get_label() for line in ax.lines] == ["index 1, mine", "index 2, mine"]
    one = theory.plot("overlap", color="red")
    assert len({line.get_linestyle() for line in one.lines}) == 2  # told apart by their dashes
    with pytest.raises(ValueError, match=r"color must be a colour, or one for each of the 2 entries .*got \['red'\]"):
        theory.plot("overlap", color=["red"])


def test_several_results_on_one_axes_go_on_with_the_colours(theory, runs):
    ax = theory.plot("overlap", label="a")
    assert theory.plot("overlap", ax=ax, label="b") is ax
    assert [line.get_color() for line in ax.lines] == list(PALETTE[:4])
    runs.plot("overlap", ax=ax, label="b")
    points = [bars.lines[0].get_color() for bars in ax.containers]
    assert points == list(PALETTE[2:4])  # those of the theory with its label
    runs.plot("overlap", ax=ax, label="b")
    assert ax.containers[2].lines[0].get_color() == PALETTE[4]  # b has its experiment
    assert len(ax.get_legend().get_texts()) == 8


def test_lines_of_the_user_keep_their_colour_to_themselves(theory):
    _, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], color=PALETTE[0])
    theory.plot("test_error", ax=ax)
    assert to_hex(ax.lines[1].get_color()) == PALETTE[1].lower()


def test_two_observables_on_one_axes_are_told_apart(theory):
    ax = theory.plot("test_error")
    assert ax.lines[0].get_label() == "theory"
    theory.plot("overlap", ax=ax)
    assert [line.get_label() for line in ax.lines] == [
        "test error, theory", "index 1, overlap, theory", "index 2, overlap, theory"
    ]  # fmt: skip
    assert "test error" in ax.get_ylabel()
    assert "overlap" in ax.get_ylabel()


def test_a_comparison_takes_the_same_keywords(theory, runs):
    ax = plot_comparison(asx.compare(theory, runs), "test_error", color="crimson", label="toy")
    assert "mean" not in ax.get_ylabel()
    bars: Any = ax.containers[0]
    assert ax.lines[0].get_color() == bars.lines[0].get_color() == "crimson"
    assert ax.get_legend_handles_labels()[1] == ["toy, theory", "toy, experiment"]


def test_kinks_stand_at_the_thresholds_where_the_value_is_known():
    x = np.array([0.1, 0.2, 0.6, 1.0])
    zero_first = np.array([0.0, 0.0, 0.5, 1.0])
    places, values, added = with_kinks(x, zero_first, from_here=[0.3, 0.25], until_there=[])
    assert places.tolist() == [0.1, 0.2, 0.3, 0.6, 1.0]
    assert values.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert added.tolist() == [0.3]
    _, values, _ = with_kinks(x, 1 - zero_first[::-1], from_here=[], until_there=[0.5])
    assert values.tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]
    moving = np.array([0.0, 0.2, 0.5, 1.0])
    for thresholds in ({"from_here": [0.3]}, {"until_there": [0.5]}):  # nothing says what its value is there
        places, _, added = with_kinks(x, moving, **({"from_here": [], "until_there": []} | thresholds))
        assert places.tolist() == x.tolist()
        assert not len(added)
    _, _, outside = with_kinks(x, zero_first, from_here=[0.05, 3.0, np.inf, np.nan], until_there=[])
    assert not len(outside)


def test_only_thresholds_of_the_same_problem_are_points_of_a_curve(theory):
    own, other = asx.thresholds(PROBLEM), asx.thresholds(PROBLEM, noise=0.01)
    line = theory.plot("overlap", reference=own).lines[0]
    assert 1.0 in np.asarray(line.get_xdata())  # exact recovery, where the toy's overlap is one from there on
    np.testing.assert_allclose(np.interp(1.0, *np.asarray(line.get_data())), 1.0)
    assert len(np.asarray(theory.plot("overlap", reference=other).lines[0].get_xdata())) == len(GRID)
    informed = asx.solve(PROBLEM, alpha=GRID, start="informed")
    assert len(np.asarray(informed.plot("overlap", reference=own).lines[0].get_xdata())) == len(GRID)


@pytest.mark.parametrize("beside", [False, True])
def test_labels_of_thresholds_cross_no_curve(theory, beside):
    ax = theory.plot("overlap", reference=asx.thresholds(PROBLEM))
    if beside:  # makes the axes narrower, and so what is beside a line
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    ax.figure.draw_without_rendering()
    curves = [ax.transData.transform(np.asarray(line.get_xydata())) for line in ax.lines[:2]]
    assert len(ax.texts) == 3
    for text in ax.texts:
        box = text.get_window_extent()
        low, high = ((y - ax.bbox.y0) / ax.bbox.height for y in (box.y0, box.y1))
        for bottom, top in _occupied(curves, (box.x0, box.x1), ax):
            assert top < low or bottom > high, text.get_text()


def test_thresholds_take_keywords_too():
    ax = mark_thresholds(asx.thresholds(PROBLEM), color="red", linestyle="-", label="toy")
    assert {line.get_color() for line in ax.lines} == {"red"}
    assert {line.get_linestyle() for line in ax.lines} == {"-"}
    assert all(text.get_text().startswith("toy, ") for text in ax.texts)


def test_equal_levels_are_one_line():
    rng = np.random.default_rng(0)
    network = asx.AttentionPaths(query_key=[rng.standard_normal((2, 3, 3))] * 2)
    problem = asx.PathPosterior(network, rng.standard_normal((6, 4, 3)), np.ones(6))
    ax = asx.solve(problem, width=[20.0, np.inf], progress=False).plot("order_parameter")
    labels = [str(line.get_label()) for line in ax.lines]
    assert labels[:4] == ["path 1-1, theory", "path 1-2, theory", "path 2-1, theory", "path 2-2, theory"]
    assert labels[4:] == ["width = ∞"]  # the prior's order parameter is a multiple of the identity
