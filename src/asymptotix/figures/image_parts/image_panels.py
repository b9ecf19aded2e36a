"""Panels of the figures on one-shot images; ``numbers`` is theory at the chosen temperatures, by draw and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ...attention_paths.heads import path_names
from ...core.plot import SIGNED_COLOURS
from ..making.drawing import BLUE, GREEN, ORANGE, PINK, PUBLISHED
from .at_widths import OMNIGLOT, Chosen, accuracy, right_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .pruned import Pruned

TITLES = {"omniglot": "Omniglot, new characters", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
LIMIT = "0.35"
#: Order in which heads are removed -> (colour, line, marker, label).
ORDERS = {
    "score": (ORANGE, "-", "o", "rising score of the theory"),
    "magnitude": (GREEN, "--", "s", "rising size of the values"),
    "search": (PINK, ":", "^", "search on validation"),
}


def accuracy_panel(
    axis: Axes, numbers: Chosen, name: str, samples: Mapping[int, xr.Dataset] | None = None, title: str | None = None
) -> None:
    """Draw accuracy on ``name`` against width: theory, the limit as a line, exact sampling (by width) as points."""
    right = numbers.right[name]
    share = accuracy(right)
    widths = right.width.values
    finite = np.isfinite(widths)
    value, error = share.value[finite], share.error[finite]
    if name == OMNIGLOT:
        other = accuracy(numbers.right_on_test).value[finite]
        axis.plot(widths[finite], other, ":", color=ORANGE, lw=1.2, label="temperature chosen on test")
    axis.plot(widths[finite], value, "-", marker="x", ms=5, color=ORANGE, label="theory")
    axis.fill_between(widths[finite], value - error, value + error, color=ORANGE, alpha=0.2, lw=0)
    limit, spread = share.value[~finite][0], share.error[~finite][0]
    axis.axhline(limit, color=LIMIT, lw=1.2, label=rf"$N=\infty$: {limit:.1f} ± {spread:.1f}")
    axis.axhspan(limit - spread, limit + spread, color=LIMIT, alpha=0.12, lw=0)
    for width, found in (samples or {}).items():
        point = accuracy(right_in(found, name).expand_dims("draw"))
        axis.errorbar(
            [width], [float(point.value)], [float(point.error)], fmt="o", markerfacecolor="white", capsize=3,
            color=BLUE, zorder=3, label="exact sampling, one draw" if width == min(samples or {}) else None,
        )  # fmt: skip
    axis.set(xscale="log", xlabel="width  $N$", ylabel="accuracy  (%)")
    axis.legend(fontsize=8.5)
    axis.set_title(title or TITLES[name], fontsize=11)


def temperature_panel(axis: Axes, numbers: Chosen, published: Mapping[float, float], offered: Sequence[float]) -> None:
    """Draw chosen temperatures for every draw, and published ones by width; ``offered`` are all to choose from."""
    chosen = numbers.temperature
    finite = np.isfinite(chosen.width.values)
    widths = chosen.width.values[finite]
    for draw in range(chosen.sizes["draw"]):
        label = "validation" if draw == 0 else None
        shift = 1.06 ** (draw - (chosen.sizes["draw"] - 1) / 2)
        axis.plot(shift * widths, chosen.isel(draw=draw).values[finite], "o", color=ORANGE, alpha=0.7, label=label)
        label = "test" if draw == 0 else None
        test = numbers.on_test.isel(draw=draw).values[finite]
        axis.plot(shift * widths, test, "x", color=BLUE, label=label)
    if published:
        axis.plot(
            list(published), list(published.values()), "D--", color=PUBLISHED, markerfacecolor="white", ms=5, lw=1.1,
            label="published (chosen on test)", zorder=1,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="width  $N$", ylabel="temperature")
    axis.set_ylim(0.7 * min(offered), 1.4 * max(offered))
    axis.legend(fontsize=8.5, title="chosen on", title_fontsize=8.5)
    axis.set_title("temperature, one mark per draw", fontsize=11)


def order_parameter_panel(axis: Axes, U: np.ndarray, heads: Sequence[int], title: str) -> None:
    """Draw U (paths, paths) in units of its largest entry; lines separate paths with different first heads."""
    reach = abs(U).max()
    axis.imshow(U / reach, cmap=SIGNED_COLOURS, vmin=-1, vmax=1, interpolation="nearest")
    axis.grid(visible=False)
    block = len(U) // heads[0]
    for edge in range(1, heads[0]):
        axis.axhline(edge * block - 0.5, color="black", lw=0.6)
        axis.axvline(edge * block - 0.5, color="black", lw=0.6)
    names = path_names(heads)
    size = 7.5 if len(names) <= 16 else 5.5
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axis.set_yticks(range(len(names)), names, fontsize=size)
    axis.tick_params(length=0)
    axis.set_xlabel(rf"path $h_1$-…-$h_{len(heads)}$;  largest entry {reach:.3g}")
    axis.set_title(title, fontsize=11)


def alignment_panel(axis: Axes, numbers: Chosen, narrow: float) -> None:
    """Draw overlaps of the labels with the kernel's principal components, at width ``narrow`` and in the limit."""
    for width, label, color, marker in (
        (np.inf, r"$N=\infty$", LIMIT, "s"),
        (narrow, f"$N={narrow:g}$", ORANGE, "o"),
    ):
        overlap = numbers.alignment.sel(width=width)
        rank = np.arange(1, overlap.sizes["component"] + 1)
        draws = overlap.sizes["draw"]
        error = overlap.std("draw", ddof=1) / np.sqrt(draws) if draws > 1 else 0 * overlap.mean("draw")
        axis.errorbar(
            rank, overlap.mean("draw"), error, fmt=f"{marker}-", ms=3, lw=1, capsize=1.5, color=color,
            label=f"theory, {label}",
        )  # fmt: skip
    axis.set(xlabel="principal component of the kernel", ylabel=r"overlap with the labels  $|e_r\cdot Y|/\sqrt{P}$")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8.5)
    axis.set_title("kernel-task alignment", fontsize=11)


def heads_panel(axis: Axes, found: Pruned, published: Sequence[float] = ()) -> None:
    """Draw the score of every head and the accuracy lost without it, by rising score; ``published`` are losses."""
    order = found.orders["score"]
    places = np.arange(len(order))
    scores = np.array([found.scores[at] for at in order])
    drops = np.array([found.drop[at] for at in order])
    errors = np.array([found.drop_error[at] for at in order])
    spread = np.array([found.scores_error[at] for at in order])
    axis.bar(places - 0.2, scores, 0.38, yerr=spread, color=BLUE, capsize=2, label="score")
    axis.set(ylabel="score of the head", ylim=(0, 1.25), xlabel="head (layer.head), by rising score")
    names = [f"{layer + 1}.{head + 1}" for layer, head in order]
    axis.set_xticks(places, names, fontsize=9 if len(order) < 12 else 7.5)
    other = axis.twinx()
    other.grid(visible=False)
    other.bar(places + 0.2, drops, 0.38, yerr=errors, color=ORANGE, capsize=2, label="loss of accuracy")
    if len(published):
        other.plot(places + 0.2, published, "D", color=PUBLISHED, markerfacecolor="white", ms=5, label="published loss")
    low = min(0.0, float((drops - errors).min()))
    high = max(1.0, float((drops + errors).max()), max(published, default=0.0))
    other.set_ylim(1.05 * low, 1.25 * high)
    axis.set_ylim(1.05 * low / high, 1.25)  # a common zero
    other.set_ylabel("loss of accuracy  (points)")
    marks, words = axis.get_legend_handles_labels()
    more, others = other.get_legend_handles_labels()
    axis.legend(marks + more, words + others, fontsize=8.5, loc="upper left")
    axis.set_title("one head gone", fontsize=11)


def pruning_panel(axis: Axes, networks: Sequence[Pruned], name: str, title: str | None = None) -> None:
    """Draw accuracy on the data set ``name`` against the number of removed heads; random orders are a band.

    For several networks, means over networks with their errors are drawn; errors of one network are over its examples.
    """
    random = 100 * xr.concat([found.random[name] for found in networks], dim="order")
    removed = random.removed.values
    low, high = random.quantile([0.1, 0.9], "order").values
    axis.fill_between(removed, low, high, color="0.5", alpha=0.2, lw=0, label="random orders, 10 to 90 %")
    axis.plot(removed, random.mean("order"), color="0.4", lw=1.2, label="random orders, mean")
    for order, (color, style, marker, words) in ORDERS.items():
        shares = [accuracy(found.curves[name][order].right.expand_dims("draw")) for found in networks]
        values = np.stack([share.value for share in shares])
        error = shares[0].error if len(shares) == 1 else values.std(axis=0, ddof=1) / np.sqrt(len(shares))
        axis.errorbar(
            removed, values.mean(axis=0), error, fmt=f"{marker}{style}", ms=4, lw=1.4, capsize=2, color=color,
            label=words,
        )  # fmt: skip
    axis.axvline(sum(networks[0].heads) / 4, color="0.6", lw=0.8, ls=":")
    axis.set(xlabel="heads gone (dotted: a quarter)", ylabel="accuracy  (%)")
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom - 0.3 * (top - bottom), top)  # room for the legend
    axis.legend(fontsize=8, loc="lower left")
    axis.set_title((title or TITLES[name]) + _of_networks(networks), fontsize=11)


def squared_error_panel(axis: Axes, networks: Sequence[Pruned], title: str, name: str = OMNIGLOT) -> None:
    """Draw the squared error on ``name`` without heads, with and without the rescaling, which changes nothing else."""
    curves = [found.curves[name]["score"] for found in networks]
    removed = curves[0].removed.values
    for variable, style, color, words in (
        ("squared_error", "o-", ORANGE, "as it is"),
        ("rescaled_squared_error", "s--", BLUE, r"layers rescaled by $\sqrt{H/H_{left}}$"),
    ):
        values = np.stack([curve[variable].values for curve in curves])
        error = values.std(axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else None
        axis.errorbar(removed, values.mean(axis=0), error, fmt=style, ms=4, capsize=2, color=color, label=words)
    axis.axhline(1.0, color="0.6", lw=0.8, ls=":")
    axis.set(xlabel="heads gone, by rising score", ylabel=r"squared error  $\langle (f-y)^2\rangle$")
    axis.legend(fontsize=8.5, loc="upper left")
    axis.set_title(f"{title}squared error (accuracy is the same)", fontsize=11)


def _of_networks(networks: Sequence[Pruned]) -> str:
    return f" ({len(networks)} networks)" if len(networks) > 1 else ""


def history_panel(axis: Axes, history: xr.Dataset, published: float | None) -> None:
    """Draw training and validation accuracy along training; a line marks ``published``, the test accuracy in %."""
    steps = history.step / 1000
    axis.plot(steps, 100 * history.train_accuracy, "-", color=BLUE, label="training batches")
    axis.plot(steps, 100 * history.validation_accuracy, "-", color=ORANGE, label="validation characters")
    best = history.validation_accuracy.argmax("step")
    axis.plot(steps[best], 100 * history.validation_accuracy[best], "o", color=ORANGE, label="kept")
    if published is not None:
        axis.axhline(published, color=PUBLISHED, ls="--", lw=1.1, label=f"published, test: {published}")
    axis.set(xlabel="step  (thousands)", ylabel="accuracy  (%)")
    axis.legend(fontsize=8.5)
    axis.set_title("gradient descent", fontsize=11)
