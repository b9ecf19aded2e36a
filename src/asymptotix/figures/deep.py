"""The figures of Troiani, Cui, Dandi, Krzakala, Zdeborova, arXiv:2502.00901: deep attention, learned Bayes-optimally.

Models have two tokens, rank one and skip 1 unless stated otherwise; there are n = alpha D samples. Fig. 3 right, the
network trained on questions, is in deep_trec.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from .deep_claims import (
    descent_findings,
    diagonal_of,
    held_findings,
    iteration_findings,
    skip_findings,
    three_layer_findings,
    two_layer_findings,
)
from .deep_trec import fig3_right as fig3_right
from .making.claims import PublishedFigure
from .making.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    PUBLISHED,
    experiment_points,
    grid_with,
    mark,
    panels,
    published,
    theory_line,
)
from .making.parts import Parts
from .making.record import Findings
from .making.registry import figure_of_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..core.result import Result

#: (colour, line, marker) of layers 1, 2, 3.
LAYERS = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"))
#: Alphas at which state evolution is also started from full knowledge.
INFORMED = (0.4, 0.6, 0.9)
SIDE_INFORMATION = 0.05
SAMPLES = r"samples per dimension  $\alpha = n/D$"


def _attention(layers: int = 2, side_information: float = 0.0) -> asx.BayesOptimal:
    model = asx.DeepAttention(layers=layers, tokens=2, rank=1, skip=1.0)
    return asx.BayesOptimal(model, side_information=side_information)


# -- two layers against the number of samples -------------------------------------------------------------------


@figure_of_paper("deep/fig1-left")
def fig1_left(
    parts: Parts,
    said: PublishedFigure,
    *,
    alphas: Sequence[float],
    simulated: Sequence[float],
    dim: Sequence[int],
    seeds: int,
    iterations: int,
    tolerance: float,
) -> tuple[Figure, Findings]:
    """Draw overlaps and errors of two layers: theory at ``alphas``, GAMP at ``simulated`` in every ``dim``.

    Errors are also drawn with layer 1 held at zero overlap.
    """
    problem, curve = _attention(), grid_with(alphas, simulated, INFORMED)
    theory = parts.solve("theory", problem, alpha=curve, tolerance=tolerance)
    held = parts.solve("layer1_held", problem, alpha=curve[curve > 0.15], tolerance=tolerance, fixed={0: 0.0})
    informed = parts.solve("informed", problem, alpha=INFORMED, tolerance=tolerance, start="informed")
    limits = parts.thresholds("thresholds", problem, tolerance=min(tolerance, 3e-3))
    runs = parts.simulate("gamp", problem, asx.GAMP(iterations=iterations), alpha=simulated, dim=dim, seeds=seeds)
    (released,) = (row[1:] for row in said.released["thresholds"] if row[0] == 1.0)
    picture, (overlaps, errors, zoom) = panels(1, 3, size=(14.5, 5.6))
    for layer in (1, 2):
        color, style, marker = LAYERS[layer - 1]
        label = f"layer {layer}"
        theory_line(overlaps, theory, "overlap", label=label, color=color, style=style, **diagonal_of(layer))
        _both_sizes(overlaps, runs, "overlap", label="GAMP", color=color, marker=marker, **diagonal_of(layer))
    _released_points(overlaps, said.released["overlap"], "layer 1, published theory")
    for axis in (errors, zoom):
        _draw_errors(axis, theory, held, runs)
        _released_points(axis, said.released["error"], "published theory")
    _mark_two_layers(overlaps, limits, released, heights=(0.98, 0.6, 0.3))
    _mark_two_layers(errors, limits, released, heights=(0.6, 0.98, 0.98))
    overlaps.set(xlabel=SAMPLES, ylabel=r"overlap with the truth  $Q_{ll}$", ylim=(-0.03, 1.06))
    errors.set(xlabel=SAMPLES, ylabel=r"error on fresh data  $E|y-\hat y|^2$", ylim=(0, 0.47))
    zoom.set(xlabel=SAMPLES, ylabel=r"error on fresh data  $E|y-\hat y|^2$", xlim=(0.66, 1.42), ylim=(0, 0.075))
    _legends_below(picture, {overlaps: 0.5, errors: 1.1})
    return picture, two_layer_findings(said, parts.compare(theory, runs), held, informed, limits)


def _both_sizes(axis: Axes, runs: Result, name: str, *, label: str, color: str, marker: str, **entry: Any) -> None:
    """Draw means over seeds of the observable ``name``, for the largest size, and for the smallest as crosses."""
    values = runs.problem.comparable(runs.ds)[name]
    sizes = [int(size) for size in values["dim"].values]
    if len(sizes) > 1:
        small = f"{label}, $D={sizes[0]}$"
        experiment_points(axis, values.isel(dim=0), label=small, color=color, marker="x", **entry)
    full = f"{label}, $D={sizes[-1]}$"
    experiment_points(axis, values.isel(dim=-1), label=full, color=color, marker=marker, **entry)


def _draw_errors(axis: Axes, theory: Result, held: Result, runs: Result) -> None:
    kinds = (("plugin_error", "plug-in", BLACK, "o"), ("test_error", "posterior mean", GREEN, "s"))
    for name, label, color, marker in kinds:
        theory_line(axis, theory, name, label=label, color=color)
        theory_line(axis, held, name, label=f"{label}, layer 1 held at zero", color=color, style="--")
        _both_sizes(axis, runs, name, label="GAMP", color=color, marker=marker)


def _legends_below(picture: Figure, places: Mapping[Axes, float]) -> None:
    """Put legends under the panels; ``places`` is panel -> the legend's centre, as a fraction of the panel's width."""
    picture.set_layout_engine("constrained", rect=(0, 0.22, 1, 0.78))
    for axis, at in places.items():
        axis.legend(loc="upper center", bbox_to_anchor=(at, -0.17), ncols=2).set_in_layout(False)


def _released_points(axis: Axes, points: Sequence[tuple[float, float]], label: str) -> None:
    """Draw published points (alpha, value) without lines, which between so few points would look like a curve."""
    for k, (alpha, value) in enumerate(points):
        published(axis, [alpha], [value], "_" if k else label)


def _mark_two_layers(axis: Axes, limits: Result, released: Sequence[float], heights: Sequence[float]) -> None:
    """Mark our thresholds, and in grey the published ones of layers 2 and 1, ``released``.

    ``heights``, as fractions of the panel, are those of the labels of layer 2, layer 1 and exact recovery.
    """
    first, second = float(limits.weak_recovery[1]), float(limits.weak_recovery[0])
    for at, layer, height, wrong in ((first, 2, heights[0], released[0]), (second, 1, heights[1], released[1])):
        mark(axis, at, f"layer {layer}", LAYERS[layer - 1][0], height=height)
        mark(axis, wrong, "published", PUBLISHED, height=height - (0.3 if layer == 2 else 0.0))
    mark(axis, float(limits.exact_recovery), "exact", height=heights[2])


# -- thresholds against the skip --------------------------------------------------------------------------------


@figure_of_paper("deep/fig1-right")
def fig1_right(
    parts: Parts, said: PublishedFigure, *, skips: Sequence[float], tolerance: float
) -> tuple[Figure, Findings]:
    """Draw the weak-recovery threshold of each of two layers against the strength of the skip connection."""
    limits = parts.thresholds(
        "thresholds", _attention(), skip=grid_with(skips, [1.0]), which="weak_recovery", tolerance=tolerance
    )
    picture, (axis,) = panels(size=(6.6, 4.4))
    for layer, words in ((1, "layer 1 is learned"), (2, "layer 2 is learned")):
        color, style, _ = LAYERS[layer - 1]
        theory_line(axis, limits, "weak_recovery", label=words, color=color, along="skip", style=style, index=layer - 1)
    axis.axhline(1 / 6, color=BLACK, linestyle=":", linewidth=1.3)
    axis.annotate(r"bound $1/M(M+1)=1/6$", (4.0, 1 / 6), xytext=(0, -4), textcoords="offset points",
                  ha="right", va="top", fontsize=9)  # fmt: skip
    at, *released = np.array(said.released["thresholds"]).T
    for k, layer in ((1, 1), (0, 2)):
        published(axis, at.tolist(), released[k].tolist(), "published" if k else "_")
        axis.annotate(f"layer {layer}", (1.5, released[k][at == 1.5][0]), xytext=(6, 5),
                      textcoords="offset points", color=PUBLISHED, fontsize=9)  # fmt: skip
    axis.set(xlabel=r"strength of the skip connection  $c$", ylabel=rf"threshold, {SAMPLES}", ylim=(0, 0.95))
    axis.legend(loc="upper right", ncols=3)
    return picture, skip_findings(said, limits)


# -- one run, iteration by iteration ----------------------------------------------------------------------------


@figure_of_paper("deep/fig2-top")
def fig2_top(
    parts: Parts, said: PublishedFigure, *, alpha: float, dim: Sequence[int], seeds: int, iterations: int
) -> tuple[Figure, Findings]:
    """Draw cosines with the truth by iteration: Algorithm 1 as published, and GAMP from side information.

    GAMP, in every ``dim``, is compared with state evolution. Algorithm 1 runs in the last ``dim``.
    """
    side = _attention(side_information=SIDE_INFORMATION)
    theory = parts.solve("theory", side, alpha=alpha, tolerance=2e-2)
    runs = parts.simulate("gamp", side, asx.GAMP(iterations=iterations), alpha=alpha, dim=dim, seeds=seeds)
    plain = asx.GAMP.algorithm1(iterations=iterations)
    printed = parts.simulate("algorithm1", _attention(), plain, alpha=alpha, dim=dim[-1:], seeds=seeds)
    comparison = parts.compare(theory, runs, by="iteration")
    picture, (left, right) = panels(1, 2, size=(10.5, 4.2), sharey=True)
    cosines = _cosines(printed)
    for layer in (2, 1):
        color, style, marker = LAYERS[layer - 1]
        traces = cosines.isel(index=layer - 1)
        left.plot(traces["iteration"], traces.isel(seed=slice(1, None)).transpose("iteration", "seed"), style,
                  color=color, lw=0.8, alpha=0.4)  # fmt: skip
        left.plot(traces["iteration"], traces.isel(seed=0), style, color=color, marker=marker, ms=3.5,
                  label=f"layer {layer}, one run")  # fmt: skip
        _draw_iterations(right, comparison.ds.isel(diagonal_of(layer)), layer)
    size = rf"$D={int(printed.ds['dim'][0])}$, $\alpha={alpha:g}$"
    left.set_title(f"Algorithm 1 as published, {seeds} runs, {size}", fontsize=10)
    right.set_title(rf"from side information {SIDE_INFORMATION:g}, $\alpha={alpha:g}$", fontsize=10)
    left.set(xlabel="iteration  $t$", ylabel=r"cosine with the truth  $|C_l|$", ylim=(-0.02, 1.04))
    right.set(xlabel="iteration  $t$")
    for axis, height in ((left, 0.12), (right, 0.0)):  # above the runs that do not learn layer 1
        axis.legend(loc="lower right", bbox_to_anchor=(1.0, height), frameon=True, framealpha=0.9)
    return picture, iteration_findings(said, cosines, comparison)


def _cosines(runs: Result) -> xr.DataArray:
    """Return cosines (seed, iteration, index = layer), the square roots of the overlaps at the first ``dim``."""
    squares = np.diagonal(runs.ds["overlap_trace"].isel(dim=0).values, axis1=-2, axis2=-1)
    traces = xr.DataArray(np.sqrt(abs(squares)), dims=("seed", "iteration", "index"))
    return traces.assign_coords(iteration=np.arange(1, traces.sizes["iteration"] + 1))


def _draw_iterations(axis: Axes, ds: xr.Dataset, layer: int) -> None:
    """Draw a layer's cosine by iteration: theory as a line, runs as points (largest size) and crosses (smallest)."""
    color, style, marker = LAYERS[layer - 1]
    steps = np.arange(1, ds.sizes["iteration"] + 1)
    axis.plot(steps, np.sqrt(ds["overlap_theory"].values.ravel()), style, color=color, label=f"layer {layer}, theory")
    for k, kind in {0: "x", ds.sizes["dim"] - 1: marker}.items():
        mean, error = (ds[f"overlap_{part}"].isel(dim=k).values for part in ("mean", "sem"))
        cosine = np.sqrt(np.maximum(mean, 0))
        axis.errorbar(steps, cosine, error / (2 * np.maximum(cosine, 0.05)), fmt=kind, ms=4, color=color, capsize=2,
                      markerfacecolor="white", lw=0.8, label=f"GAMP, $D={int(ds['dim'][k])}$")  # fmt: skip


@figure_of_paper("deep/fig2-bottom")
def fig2_bottom(
    parts: Parts, said: PublishedFigure, *, alpha: float, dim: int, seeds: int, epochs: int
) -> tuple[Figure, Findings]:
    """Draw cosines with the truth along SGD; batches of 200 come in a fixed order, each used for three steps."""
    algorithm = asx.SGD(epochs=epochs)
    runs = parts.simulate("sgd", _attention(), algorithm, alpha=alpha, dim=dim, seeds=seeds)
    cosine = abs(runs.ds["cosine_trace"])
    batches = runs.ds["step_trace"].isel(seed=0).values.ravel() / algorithm.reuse
    picture, (axis,) = panels(size=(7.2, 4.4))
    for layer in (2, 1):
        color, style, _ = LAYERS[layer - 1]
        traces = cosine.isel(index=layer - 1).transpose("iteration", "seed")
        axis.plot(batches, traces, style, color=color, lw=0.7, alpha=0.5)
        label = f"layer {layer}, mean of {seeds} runs"
        axis.plot(batches, traces.mean("seed"), style, color=color, lw=2.6, label=label)
    axis.axhline(0.5, color="0.6", linestyle=":", linewidth=1.0)
    for layer in (2, 1):
        low, high = said.claims[f"passage-{layer}"].limits
        axis.plot([low, high], [1.06, 1.06], "|-", color=PUBLISHED, ms=9, lw=1.4)
        axis.annotate(f"layer {layer} above 1/2, published", ((low * high) ** 0.5, 1.06), xytext=(0, 6), ha="center",
                      textcoords="offset points", color=PUBLISHED, fontsize=9)  # fmt: skip
    axis.set(
        xscale="log", xlabel="batches (three gradient steps on each)", ylabel=r"cosine with the truth  $|C_l|$",
        ylim=(0, 1.16), title=rf"SGD, $D={dim}$, $\alpha={alpha:g}$",
    )  # fmt: skip
    axis.legend(loc="center left")
    return picture, descent_findings(said, runs, algorithm)


# -- three layers -----------------------------------------------------------------------------------------------


@figure_of_paper("deep/fig3-left")
def fig3_left(
    parts: Parts, said: PublishedFigure, *, alphas: Sequence[float], tolerance: float
) -> tuple[Figure, Findings]:
    """Draw overlaps and errors of three layers by theory, also with layers 1 and 2 held at zero overlap."""
    problem = _attention(layers=3)
    theory = parts.solve("theory", problem, alpha=alphas, tolerance=tolerance)
    later = [alpha for alpha in alphas if alpha >= 0.6]  # below 0.6 layers 1 and 2 are not learned anyway
    held = parts.solve("layers12_held", problem, alpha=later, tolerance=tolerance, fixed={0: 0.0, 1: 0.0})
    limits = parts.thresholds("thresholds", problem, tolerance=tolerance)
    picture, (overlaps, errors) = panels(1, 2, size=(11.0, 4.4))
    for layer, (color, style, marker) in enumerate(LAYERS, start=1):
        label, style = f"layer {layer}", f"{marker}{style}"
        theory_line(overlaps, theory, "overlap", label=label, color=color, style=style, **diagonal_of(layer))
        height = 0.55 if layer < 3 else 0.98
        mark(overlaps, float(limits.weak_recovery[layer - 1]), f"layer {layer}", color, height=height)
    kinds = (("plugin_error", "plug-in", BLACK, "o"), ("test_error", "posterior mean", PINK, "s"))
    for name, label, color, style in kinds:
        theory_line(errors, theory, name, label=label, color=color, style=f"{style}-")
        theory_line(errors, held, name, label=f"{label}, layers 1, 2 held at zero", color=color, style="--")
    mark(overlaps, float(limits.exact_recovery), "exact", height=0.55)
    overlaps.set(xlabel=SAMPLES, ylabel=r"overlap with the truth  $Q_{ll}$", ylim=(-0.03, 1.06))
    errors.set(xlabel=SAMPLES, ylabel=r"error on fresh data  $E|y-\hat y|^2$", ylim=(0, None))
    overlaps.legend(loc="lower center", bbox_to_anchor=(0.36, 0.06), frameon=True, framealpha=0.9)
    errors.legend(loc="upper right")
    return picture, three_layer_findings(said, theory, held, limits)


# -- one layer against the other --------------------------------------------------------------------------------


@figure_of_paper("deep/fig5")
def fig5(
    parts: Parts, said: PublishedFigure, *, alpha: float, held: Sequence[float], tolerance: float
) -> tuple[Figure, Findings]:
    """Draw the overlap of layer 1 by state evolution, with that of layer 2 fixed at each value of ``held``."""
    settings = {"alpha": alpha, "held": list(held), "tolerance": tolerance}
    found = parts.dataset("held", settings, lambda: _overlaps_while_held(alpha, held, tolerance))
    free = parts.solve("free", _attention(), alpha=[0.98 * alpha], tolerance=tolerance)
    picture, (whole, near) = panels(1, 2, size=(9.5, 4.0), sharey=True)
    color, style, marker = LAYERS[0]
    for axis, x in ((whole, found["held"]), (near, 1 - found["held"])):
        axis.errorbar(x, found["overlap"], found["overlap_err"], fmt=f"{marker}{style}", color=color, capsize=2.5)
    whole.set(xlabel=r"overlap at which layer 2 is held  $Q_{22}$", ylabel="overlap of layer 1  $Q_{11}$")
    whole.set_ylim(-0.03, 1.03)
    near.set(xlabel=r"what layer 2 lacks  $1-Q_{22}$", xscale="log", xlim=(0.15, 7e-5))
    whole.annotate(rf"$\alpha={alpha:g}$, $c=1$", (0.06, 0.9), xycoords="axes fraction")
    return picture, held_findings(said, found, free)


def _overlaps_while_held(alpha: float, held: Sequence[float], tolerance: float) -> xr.Dataset:
    """Return ``overlap`` of layer 1, ``overlap_err`` and ``converged`` for each value ``held`` of layer 2's overlap."""
    problem, entry = _attention(), diagonal_of(1)
    solved = [asx.solve(problem, alpha=alpha, tolerance=tolerance, fixed={1: at}, progress=False).ds for at in held]
    columns = {name: [float(ds[name].isel(entry)) for ds in solved] for name in ("overlap", "overlap_err")}
    columns["converged"] = [bool(ds["converged"]) for ds in solved]
    return xr.Dataset({name: ("held", values) for name, values in columns.items()}, coords={"held": list(held)})
