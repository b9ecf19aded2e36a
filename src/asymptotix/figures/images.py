"""The figures on images of Tiberi, Mignacco, Irie, Sompolinsky, arXiv:2405.15926: one-shot classification.

Networks are trained by gradient descent on Omniglot. The theory of Bayesian value weights is evaluated with their
attention heads and scores which heads can be pruned. The three figures share the networks and the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .image_parts import image_claims as claims
from .image_parts import image_panels as draw
from .image_parts.at_widths import FASHION, MNIST, OMNIGLOT, Chosen, chosen, joined_draws
from .image_parts.collected import NARROW, ImageParts, Sampling, Scale
from .image_parts.pruned import Pruned, pruned
from .image_parts.trained_heads import Recipe
from .making.claims import PublishedFigure
from .making.drawing import panels
from .making.parts import Parts
from .making.record import Claim, Findings
from .making.registry import figure_of_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _scale(**given: Any) -> Scale:
    """Return the settings of a figure, name=value as in the paper's file, as a `Scale`."""
    recipe = Recipe(given["width"], given["steps"], given["batch"], given["learning_rate"])
    sampling = Sampling(tuple(given["sampled"]), given["chains"], given["warmup"], given["sampler_draws"])
    plain = {name: given[name] for name in ("examples", "draws", "validation_examples", "test_examples")}
    widths, temperatures = (tuple(map(float, given[name])) for name in ("widths", "temperatures"))
    return Scale(recipe, **plain, widths=widths, temperatures=temperatures, sampling=sampling)


def _is_full(said: PublishedFigure, scale: Scale) -> bool:
    """Return whether network width and number of examples are the published ones, to which the claims refer."""
    return scale.recipe.width == said.released["width"] and scale.examples == said.released["examples"]


def _judged(said: PublishedFigure, found: Sequence[Claim], scale: Scale) -> list[Claim]:
    """Return the claims ``found``, all as not decided unless width and examples are the published ones."""
    return [claim if _is_full(said, scale) else replace(claim, holds=None) for claim in found]


def _training_remark(made: ImageParts, architectures: Sequence[str]) -> str:
    parts = []
    for name in architectures:
        trained = made.network(name)
        base, error = made.base_accuracy(name)
        best = float(trained.history.validation_accuracy.max())
        parts.append(
            f"{name}: {trained.settings['steps_done']} steps of {trained.settings['batch']}, weights of step "
            f"{trained.settings['kept_step']}, accuracy {100 * best:.1f} % on validation characters, "
            f"{base:.1f} ± {error:.1f} % on test characters"
        )
    recipe = made.scale.recipe
    return f"Trained networks, N = {recipe.width}, learning rate {recipe.learning_rate:g}. {'; '.join(parts)}."


@figure_of_paper("paths/fig3")
def fig3(parts: Parts, said: PublishedFigure, **settings: Any) -> tuple[Figure, Findings]:
    """Draw panels (b) to (f), two layers of four heads, and temperature, squared error and training history.

    ``settings`` are those of `_scale`, with numbers of ``networks`` and ``random_orders``.
    """
    made = ImageParts(parts, _scale(**settings))
    tables = made.all_temperatures("L2H4")
    numbers = chosen(tables)
    temperature = {width: float(numbers.temperature.isel(draw=0).sel(width=width)) for width in made.scale.widths}
    samples = {width: made.sampled("L2H4", width, temperature[width]) for width in made.scale.sampling.widths}
    networks = _pruned(made, "L2H4", numbers, settings)
    found = networks[0]
    U, exact = _narrow(numbers), samples[NARROW].order_parameter.values
    empirical = made.network("L2H4").order_parameter()
    picture, axes = panels(3, 4, size=(19.0, 13.5))
    draw.accuracy_panel(axes[0], numbers, OMNIGLOT, samples)
    draw.accuracy_panel(axes[1], numbers, FASHION, samples)
    published = said.released if _is_full(said, made.scale) else {}
    draw.temperature_panel(axes[2], numbers, dict(published.get("temperatures", ())), made.scale.temperatures)
    draw.alignment_panel(axes[3], numbers, NARROW)
    for axis, matrix, title in zip(
        axes[4:7],
        (U, exact, empirical),
        (f"$U$, theory, $N={NARROW}$", f"$U$, exact sampling, $N={NARROW}$", "$U$ of the weights of gradient descent"),
        strict=True,
    ):
        draw.order_parameter_panel(axis, matrix, found.heads, title)
    base = made.base_accuracy("L2H4")
    draw.heads_panel(axes[7], found, _losses(published))
    _pruning_row(axes[8:11], networks)
    draw.history_panel(axes[11], made.network("L2H4").history, published.get("base"))
    judged = [
        claims.base_claim(said, *base),
        *(
            claims.gain_claim(said, numbers, name, NARROW, data=title)
            for name, title in ((OMNIGLOT, "Omniglot"), (FASHION, "Fashion-MNIST"))
        ),
        claims.alignment_claim(said, numbers, NARROW),
        claims.off_diagonal_claim(said, U, "L2H4"),
        claims.block_claim(said, U, found.heads),
        claims.likeness_claim(said, U, empirical, found.heads),
        claims.sampling_claim(said, numbers.order_parameter.isel(draw=0).sel(width=NARROW).values, samples[NARROW]),
        *claims.temperature_claims(said, joined_draws(tables), numbers),
        *_pruning_claims(said, networks, "L2H4"),
    ]
    remarks = [
        _training_remark(made, ["L2H4"]),
        claims.single_remark(found, base[0], said.released),
        claims.choice_remark(numbers),
        claims.order_remark(networks, "L2H4"),
        claims.rescaling_remark(found, "L2H4"),
        claims.sampling_remark(samples),
        *claims.COMMON_REMARKS,
    ]
    agreements = [claims.sampling_agreement(numbers, samples, name) for name in (OMNIGLOT, FASHION)]
    return picture, Findings(agreements, _judged(said, judged, made.scale), remarks)


@figure_of_paper("paths/fig6")
def fig6(parts: Parts, said: PublishedFigure, **settings: Any) -> tuple[Figure, Findings]:
    """Draw accuracies on three data sets, and U, for (a) two layers of four heads and (b) three layers of three.

    ``settings`` are those of `_scale`.
    """
    made = ImageParts(parts, _scale(**settings))
    picture, axes = panels(2, 4, size=(19.0, 9.2))
    judged, remarks = [], [_training_remark(made, ["L2H4", "L3H3"])]
    for row, architecture in enumerate(("L2H4", "L3H3")):
        numbers = made.widths(architecture)
        U, heads = _narrow(numbers), made.network(architecture).network.heads
        for axis, name in zip(axes[4 * row :], (OMNIGLOT, MNIST, FASHION), strict=False):
            draw.accuracy_panel(axis, numbers, name, title=f"{architecture}: {draw.TITLES[name]}")
        draw.order_parameter_panel(axes[4 * row + 3], U, heads, f"{architecture}: $U$, theory, $N={NARROW}$")
        for name, title in ((OMNIGLOT, "Omniglot"), (MNIST, draw.TITLES[MNIST]), (FASHION, draw.TITLES[FASHION])):
            comparable = name in said.released["comparable"][architecture]
            claim = claims.comparable_claim if comparable else claims.gain_claim
            judged.append(claim(said, numbers, name, NARROW, architecture=architecture, data=title))
        judged.append(claims.off_diagonal_claim(said, U, architecture))
        remarks.append(f"{architecture}. {claims.choice_remark(numbers)}")
    return picture, Findings((), _judged(said, judged, made.scale), [*remarks, claims.COMMON_REMARKS[0]])


@figure_of_paper("paths/fig7")
def fig7(parts: Parts, said: PublishedFigure, **settings: Any) -> tuple[Figure, Findings]:
    """Draw panels (a) to (d), pruning of two layers of four or eight heads, and squared errors; see `fig3`."""
    made = ImageParts(parts, _scale(**settings))
    picture, axes = panels(2, 4, size=(19.0, 9.2))
    judged, remarks, found = [], [_training_remark(made, ["L2H4", "L2H8"])], {}
    for row, architecture in enumerate(("L2H4", "L2H8")):
        # Fig. 3 already has all widths of the smaller network; of the larger network this figure needs one width.
        numbers = made.widths(architecture, None if architecture == "L2H4" else [NARROW])
        own = found[architecture] = _pruned(made, architecture, numbers, settings)
        draw.heads_panel(
            axes[4 * row], own[0], _losses(said.released if row == 0 and _is_full(said, made.scale) else {})
        )
        axes[4 * row].set_title(f"{architecture}: one head gone", fontsize=11)
        _pruning_row(axes[4 * row + 1 : 4 * row + 4], own, f"{architecture}: ")
        judged += _pruning_claims(said, own, architecture)
        remarks += [
            claims.single_remark(own[0], made.base_accuracy(architecture)[0], {} if row else said.released),
            claims.order_remark(own, architecture),
        ]
    judged.append(claims.same_loss_claim(said, found["L2H4"], found["L2H8"]))
    remarks.append(claims.rescaling_remark(found["L2H8"][0], "L2H8"))
    return picture, Findings((), _judged(said, judged, made.scale), [*remarks, *claims.COMMON_REMARKS])


def _pruned(made: ImageParts, architecture: str, numbers: Chosen, settings: Mapping[str, Any]) -> list[Pruned]:
    """Return results of pruning networks trained with seeds 0, 1, ...; heads are scored by theory at width NARROW.

    ``numbers`` is that theory for seed 0.
    """
    found = []
    for seed in range(settings["networks"]):
        own = made.other(seed) if seed else made
        table = own.widths(architecture, [NARROW]) if seed else numbers
        U = table.order_parameter.sel(width=NARROW)
        weights = own.network(architecture).weights
        found.append(pruned(own.outputs(architecture), U, weights, settings["random_orders"]))
    return found


def _pruning_row(axes: Sequence[Axes], networks: Sequence[Pruned], before: str = "") -> None:
    for axis, name in zip(axes, (OMNIGLOT, FASHION), strict=False):
        draw.pruning_panel(axis, networks, name, title=f"{before}{draw.TITLES[name]}")
    draw.squared_error_panel(axes[2], networks, before)


def _pruning_claims(said: PublishedFigure, networks: Sequence[Pruned], architecture: str) -> list[Claim]:
    return [
        claims.score_claim(said, networks, architecture),
        claims.marginal_claim(said, networks, architecture),
        claims.fashion_claim(said, networks, 2 if architecture == "L2H4" else 3, architecture),
    ]


def _losses(published: Mapping[str, Any]) -> list[float]:
    """Return the published losses of accuracy (points) without one head, by rising score; [] if none is given."""
    return [published["base"] - value for value in published.get("after_one", ())]


def _narrow(numbers: Chosen) -> np.ndarray:
    """Return the order parameter (paths, paths) at width NARROW, averaged over draws of the training examples."""
    return numbers.order_parameter.sel(width=NARROW).mean("draw").values
