"""Results of pruning one network: scores, orders of removal, accuracies without heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy.stats import t as student

from ...attention_paths.heads import scores
from ...attention_paths.network.weights import Weights
from . import without_heads
from .at_widths import FASHION, MNIST, OMNIGLOT, VALIDATION, accuracy
from .without_heads import Head


@dataclass(frozen=True)
class Pruned:
    """Results of pruning one network.

    Attributes
    ----------
    heads : tuple of int
        Number of heads in every layer.
    scores, scores_error : arrays (layers, heads)
        Score by the theory's order parameter, divided by the largest score, and its error.
    drop, drop_error : arrays (layers, heads)
        Loss of accuracy on Omniglot without the head, in percentage points, and its error over the examples.
    orders : dict of str to list of (layer, head)
        Orders of removal: by rising "score", by rising "magnitude" of the values, by "search" on validation examples.
    curves : dict of str to dict of str to Dataset
        Results of `removal_curve`, by data set and order.
    random : dict of str to DataArray (order, removed)
        Accuracies (0 to 1) of random orders, by data set.
    quarter : dict of str to array
        Accuracy (0 to 1) without each set of a quarter of the heads, by data set.
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
        """Return the accuracy lost (points) on ``name`` without an order's first ``count`` heads, and its error."""
        right = self.curves[name][order].right
        share = accuracy((right.sel(removed=0) - right.sel(removed=count)).expand_dims("draw"))
        return float(share.value), float(share.error)

    def chance_loss(self, name: str) -> float:
        """Return the loss of accuracy (points) on data ``name``, averaged over all sets of a quarter of the heads."""
        return 100 * (float(self.curves[name]["score"].right.sel(removed=0).mean()) - float(self.quarter[name].mean()))

    def standing(self, name: str, order: str) -> float:
        """Return the fraction of sets of a quarter of the heads that cost at least as much as the order's quarter."""
        own = float(self.curves[name][order].right.sel(removed=self.quarter_count).mean())
        return float((self.quarter[name] <= own + 1e-12).mean())


def pruned(outputs: xr.Dataset, order_parameters: xr.DataArray, weights: Weights, random_orders: int) -> Pruned:
    """Return results of pruning, from ``outputs`` of paths and order parameters (draw, path, path_other)."""
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


def mean_loss(networks: Sequence[Pruned], name: str, order: str, count: int) -> tuple[float, float]:
    """Return the mean of `Pruned.loss` over networks of one architecture, in percentage points, and its error.

    For several networks, twice the error is the half-width of a 95 % confidence interval (Student's t), or more if the
    error over examples is larger. For one network the error is over its examples alone.
    """
    each = np.array([network.loss(name, order, count) for network in networks])
    return over_networks(each[:, 0], float(np.hypot.reduce(each[:, 1]) / len(each)))


def over_networks(values: np.ndarray, least: float) -> tuple[float, float]:
    """Return mean and error of ``values`` (networks,); the error is at least ``least``, that over the examples."""
    if len(values) == 1:
        return float(values[0]), least
    spread = float(values.std(ddof=1) / np.sqrt(len(values)) * student.ppf(0.975, len(values) - 1) / 2)
    return float(values.mean()), max(spread, least)


def single_losses(outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of accuracy (percentage points) without each single head, and its error, both (layers, heads).

    ``outputs`` (examples, paths) are those of the paths. Entries without a head are nan.
    """
    named = without_heads.all_heads(heads)
    right = without_heads.right(without_heads.without(outputs, heads, [(), *((head,) for head in named)]), labels)
    lost = 100 * (right[0] - right[1:])
    value, error = np.full((2, len(heads), max(heads)), np.nan)
    for at, row in zip(named, lost, strict=True):
        value[at], error[at] = row.mean(), row.std(ddof=1) / np.sqrt(len(row))
    return value, error


def _sets(outputs: xr.Dataset) -> list[str]:
    return [name for name in (VALIDATION, OMNIGLOT, MNIST, FASHION) if f"outputs_{name}" in outputs]
