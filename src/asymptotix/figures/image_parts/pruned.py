"""One network and all that is asked of it without some of its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from ...attention_paths.heads import scores
from ...attention_paths.network.weights import Weights
from . import without_heads
from .at_widths import FASHION, MNIST, OMNIGLOT, VALIDATION, accuracy
from .without_heads import Head


@dataclass(frozen=True)
class Pruned:
    """Attributes
    ----------
    heads : tuple of int
    scores, scores_error, drop, drop_error : arrays (layers, heads)
        Score by the theory's order parameter, over its largest; loss of accuracy on Omniglot when a head goes, in
        points, with its error over the examples.
    orders : dict of str to list of (layer, head)
        By rising "score", by rising "magnitude" of the values, by "search" on the validation examples.
    curves : dict of str to dict of str to Dataset
        By data set and order: see `removal_curve`.
    random : dict of str to DataArray (order, removed)
    quarter : dict of str to array
        Accuracy without each set of a quarter of the heads.
    """

    heads: tuple[int, ...]
    scores: np.ndarray
    scores_error: np.ndarray
    drop: np.ndarray
    drop_error: np.ndarray
    orders: dict[str, list[Head]]
    curves: dict[str, dict[str, xr.Dataset]]
    random: dict[str, xr.DataArray]
    quarter: dict[str, np.ndarray]

    @property
    def quarter_count(self) -> int:
        return sum(self.heads) // 4

    def loss(self, name: str, order: str, count: int) -> tuple[float, float]:
        """Points of accuracy lost with the first heads of an order, with their error over the same examples."""
        right = self.curves[name][order].right
        share = accuracy((right.sel(removed=0) - right.sel(removed=count)).expand_dims("draw"))
        return float(share.value), float(share.error)

    def standing(self, name: str, order: str) -> float:
        """Share of all sets of a quarter of the heads that cost as much as this order's first ones, or more."""
        own = float(self.curves[name][order].right.sel(removed=self.quarter_count).mean())
        return float((self.quarter[name] <= own + 1e-12).mean())


def pruned(outputs: xr.Dataset, order_parameters: xr.DataArray, weights: Weights, random_orders: int) -> Pruned:
    """From the outputs of the paths, and theory's order parameters (draw, path, path_other)."""
    heads = tuple(len(V) for V in weights.V)
    by_draw = scores(order_parameters.values, heads)
    mean = by_draw.mean(axis=0)
    mean /= np.nanmax(mean)
    draws = len(by_draw)
    error = by_draw.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else np.zeros_like(mean)
    sets = {name: (outputs[f"outputs_{name}"].values, outputs[f"labels_{name}"].values) for name in _sets(outputs)}
    orders = {
        "score": without_heads.by_rising(mean, heads),
        "magnitude": without_heads.by_rising(without_heads.magnitudes(weights, heads), heads),
        "search": without_heads.greedy_order(*sets[VALIDATION], heads),
    }
    by_chance = without_heads.random_orders(heads, random_orders)
    drop, drop_error = single_losses(*sets[OMNIGLOT], heads)
    asked = {name: given for name, given in sets.items() if name != VALIDATION}
    return Pruned(
        heads=heads,
        scores=mean,
        scores_error=error,
        drop=drop,
        drop_error=drop_error,
        orders=orders,
        curves={
            name: {order: without_heads.removal_curve(*given, heads, gone) for order, gone in orders.items()}
            for name, given in asked.items()
        },
        random={name: without_heads.random_curves(*given, heads, by_chance) for name, given in asked.items()},
        quarter={name: without_heads.all_of_size(*given, heads, sum(heads) // 4) for name, given in asked.items()},
    )


def single_losses(outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Points of accuracy lost when one head goes, with their errors, (layers, heads) each; nan where there is none."""
    named = without_heads.all_heads(heads)
    right = without_heads.right(without_heads.without(outputs, heads, [(), *((head,) for head in named)]), labels)
    lost = 100 * (right[0] - right[1:])
    value, error = np.full((2, len(heads), max(heads)), np.nan)
    for at, row in zip(named, lost, strict=True):
        value[at], error[at] = row.mean(), row.std(ddof=1) / np.sqrt(len(row))
    return value, error


def _sets(outputs: xr.Dataset) -> list[str]:
    return [name for name in (VALIDATION, OMNIGLOT, MNIST, FASHION) if f"outputs_{name}" in outputs]
