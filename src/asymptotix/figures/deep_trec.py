"""Fig. 3 right of Troiani et al., arXiv:2502.00901: which layer of attention trained on TREC converges first.

There are two training settings, because the paper's text and the released code differ. There are two similarities: the
published one, of K = w w^T (P x P), and the similarity of w^T w (D x D), on which the attention scores depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

import asymptotix as asx

from ..core.words import format_number
from ..sequence_index.classification.layer_convergence import AREA, HALF, layer_order
from .making.claims import PublishedFigure
from .making.drawing import BLACK, BLUE, GREEN, ORANGE, panels
from .making.parts import Parts
from .making.record import Findings
from .making.registry import figure_of_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..tasks import TrecTask

#: Colour of layers 1 and 2.
LAYERS = (BLUE, ORANGE)
#: Training settings: name of the part -> (constructor of the network, its label, colour, marker).
SETTINGS: Mapping[str, tuple[Callable[[], asx.AttentionClassifier], str, str, str]] = {
    "released": (asx.AttentionClassifier.released, "as in the released code", BLACK, "o"),
    "printed": (asx.AttentionClassifier.printed, "as in the text", GREEN, "s"),
}
#: Similarities: variable -> (the matrix as plain text, the matrix in TeX).
SIMILARITIES = {
    "similarity": ("w wᵀ (P × P)", r"$w_l w_l^\top\ (P\times P)$"),
    "score_similarity": ("wᵀw (D × D)", r"$w_l^\top w_l\ (D\times D)$"),
}
#: Statistics for which layer converges first: steps to a similarity of 0.9 and 0.95, and the area above the curve. The
#: last one decides: it uses the whole curve, and is defined even if a layer is never below a level.
ABSOLUTE = ("0.9", "0.95", AREA)
#: An order of the layers counts as found if the sign test gives it at most this probability by chance. Larger: more
#: chance orders are believed. Smaller: more claims stay undecided.
CHANCE = 0.05


@figure_of_paper("deep/fig3-right")
def fig3_right(
    parts: Parts, said: PublishedFigure, *, seeds: int, epochs: int, record_every: int
) -> tuple[Figure, Findings]:
    """Draw the similarity of each layer to its last iterate along training, for every run, in both settings.

    A similarity is recorded every ``record_every`` training steps.
    """
    sizes = {"seeds": seeds, "epochs": epochs, "record_every": record_every}
    runs = {setting: trained(parts, setting, **sizes) for setting in SETTINGS}
    picture, axes = panels(2, 3, size=(15.0, 7.6))
    for row, (name, (_, symbols)) in zip((axes[:3], axes[3:]), SIMILARITIES.items(), strict=True):
        for axis, (setting, ds) in zip(row, runs.items(), strict=False):
            _draw_curves(axis, ds[name])
            axis.set_title(f"trained {SETTINGS[setting][1]}", fontsize=10)
            axis.set_ylabel(f"similarity to the last iterate\nof {symbols}")
        row[1].set_xscale("log")
        row[1].set_xlim(record_every, None)
        _draw_leads(row[2], {setting: layer_order(ds[name]) for setting, ds in runs.items()})
    axes[0].legend(loc="lower right")
    axes[2].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2)
    return picture, _findings(said, runs, epochs)


def trained(parts: Parts, setting: str, **sizes: int) -> xr.Dataset:
    """Return the training histories of one of SETTINGS, stored in ``parts``; ``sizes`` are those of fig3_right."""
    classifier = SETTINGS[setting][0]()
    asked = {"classifier": repr(classifier), **sizes}
    return parts.dataset(setting, asked, lambda: _histories(classifier, progress=parts.progress, **sizes))


def _histories(
    classifier: asx.AttentionClassifier, *, seeds: int, epochs: int, record_every: int, progress: bool | None
) -> xr.Dataset:
    """Train ``seeds`` networks and return their histories.

    ``printed_end`` (seed, layer) is added: the last iterate's similarity to itself, as the paper's text defines it.
    """
    runs = classifier.train(_questions(seeds), epochs=epochs, record_every=record_every, progress=progress)
    keys = runs.keys.astype(float)
    grams = keys @ keys.swapaxes(-1, -2)
    end = (grams**2).sum((-2, -1)) / (keys**2).sum((-2, -1)) ** 2
    return runs.history.assign(printed_end=(("seed", "layer"), end))


def _questions(seeds: int) -> Sequence[TrecTask]:
    return [asx.tasks.trec(seed=seed) for seed in range(seeds)]


# -- drawing ----------------------------------------------------------------------------------------------------


def _draw_curves(axis: Axes, values: xr.DataArray) -> None:
    """Draw ``values`` (seed, layer, step): every run as a thin line, the mean of each layer as a thick line."""
    for layer, color in enumerate(LAYERS, start=1):
        curves = values.sel(layer=layer)
        axis.plot(curves["step"], curves.transpose("step", "seed"), color=color, lw=0.8, alpha=0.45)
        axis.plot(curves["step"], curves.mean("seed"), color=color, lw=2.2, label=f"layer {layer}, mean over runs")
    low = np.floor(10 * float(values.min()) - 0.1) / 10
    axis.set(xlabel="training step", ylim=(low - 0.03, 1 + 0.05 * (1 - low)))


def _draw_leads(axis: Axes, orders: Mapping[str, xr.Dataset]) -> None:
    """Draw the steps by which layer 1 is earlier, by setting: runs as points, means over runs with error bars."""
    words = {"0.9": "passes\n0.9", "0.95": "passes\n0.95", HALF: "half of\nits own way", AREA: "area above\nthe curve"}
    for shift, (setting, order) in zip((0.16, -0.16), orders.items(), strict=True):
        _, label, color, marker = SETTINGS[setting]
        for k, statistic in enumerate(reversed(words)):
            at = order.sel(statistic=statistic)
            axis.plot(at["lead"], np.full(at.sizes["seed"], k + shift), marker, color=color, ms=3.5, alpha=0.5, mew=0)
            axis.errorbar(
                at["mean_lead"], k + shift + 0.12, xerr=np.nan_to_num(at["mean_lead_err"]), fmt=marker, color=color,
                markerfacecolor="white", capsize=2.5, label="_" if k else label,
            )  # fmt: skip
    axis.axvline(0, color="0.35", lw=1.0, zorder=1)
    axis.set_xscale("symlog", linthresh=100)
    axis.margins(x=0.06)
    axis.set_yticks(range(len(words)), list(reversed(words.values())))
    axis.set(xlabel="steps by which layer 1 is earlier than layer 2", ylim=(-0.6, len(words) - 0.4))


# -- findings ---------------------------------------------------------------------------------------------------


def _findings(said: PublishedFigure, runs: Mapping[str, xr.Dataset], epochs: int) -> Findings:
    claims, (matrix, other) = [], (words for words, _ in SIMILARITIES.values())
    for setting, ds in runs.items():
        how = f"trained {SETTINGS[setting][1]}"
        order, score_order = layer_order(ds["similarity"]), layer_order(ds["score_similarity"])
        claims += [
            said("converges-first", *_order(order, ABSOLUTE), how=how, matrix=matrix),
            said("converges-first-by-scores", *_order(score_order, ABSOLUTE), matrix=other),
            said("half-way-first", *_order(order, (HALF,)), how=how),
            said("half-way-first-by-scores", *_order(score_order, (HALF,)), matrix=other),
        ]
    first, second = runs["released"]["similarity"].isel(step=0).mean("seed").values
    ends, blindness = _range(runs["released"]["printed_end"]), _blindness(runs["printed"])
    remarks = said.remarks(first=first, second=second, ends=ends, blindness=blindness, accuracies=_accuracies(runs))
    if epochs != (published := said.released["epochs"]):
        remarks.append(f"{epochs} epochs instead of {published}, so that last iterates are others.")
    return Findings(claims=claims, remarks=remarks)


def _order(order: xr.Dataset, statistics: Sequence[str]) -> tuple[bool | None, str]:
    """Return whether layer 1 is first by the last of the ``statistics`` (None: by chance), and a text on all."""
    last = order.sel(statistic=statistics[-1])
    holds = 2 * int(last["earlier"]) > last.sizes["seed"] if last["p_value"] <= CHANCE else None
    return holds, "; ".join(_lead_words(order.sel(statistic=name)) for name in statistics)


def _lead_words(order: xr.Dataset) -> str:
    name = str(order["statistic"].item())
    words = {HALF: "half of the way", AREA: "area above the curve, which decides"}.get(name, f"similarity {name}")
    lead = format_number(float(order["mean_lead"]), float(order["mean_lead_err"]))
    runs = f"{int(order['earlier'])} of {order.sizes['seed']} runs"
    return f"{words}: layer 1 leads by {lead} steps, and in {runs} (p = {float(order['p_value']):.2g})"


def _blindness(printed: xr.Dataset) -> str:
    """Return a remark: how similar w^T w is to its end when the published similarity has passed 0.95 in both layers."""
    last = layer_order(printed["similarity"])["time"].sel(statistic="0.95").max("layer").values
    other = printed["score_similarity"].transpose("seed", "layer", "step")
    steps, runs = other["step"].values, zip(last, other.values, strict=True)
    one, two = np.mean([[np.interp(time, steps, curve) for curve in run] for time, run in runs], axis=0)
    return (
        "Trained as in the text, both layers have passed 0.95 of the published similarity after "
        f"{last.min():.0f} to {last.max():.0f} steps, but that of wᵀw, which attention depends on, is {one:.2f} and "
        f"{two:.2f} then (means over runs). From a small start the weights become nearly one product u vᵀ (|w wᵀ|²/|w|⁴"
        f" is {_range(printed['printed_end'])} in the end): w wᵀ sees u alone, and not how v turns."
    )


def _accuracies(runs: Mapping[str, xr.Dataset]) -> str:
    words = []
    for setting, ds in runs.items():
        share = 100 * float(ds["validation_accuracy"].isel(epoch=-1).mean())
        losses = ds["train_loss"].mean("seed").values
        loss = f"training loss {losses[0]:.2f} in the first epoch, {losses[-1]:.2f} in the last"
        words.append(f"{share:.1f} % trained {SETTINGS[setting][1]} ({loss})")
    return f"Questions held out that are classified rightly in the end: {', '.join(words)}."


def _range(values: xr.DataArray) -> str:
    low, high = (f"{float(value):.3f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
