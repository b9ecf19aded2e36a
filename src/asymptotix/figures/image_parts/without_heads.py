"""Output of a trained network without some of its heads, for any set of heads.

Attention scores depend on the bare input and values enter linearly, so that the output is a sum over paths, f = sum_pi
f^pi(x). The output without some heads is the sum over the paths that avoid these heads. Every order of removal thus
needs sums of the same numbers only. The published rescaling divides the sum of layer l by the square root of the number
of remaining heads, not of all heads: it multiplies f by prod_l sqrt(H_l / kept_l), one positive number for all
examples. It changes the squared error but no decision.

Tiberi et al., arXiv:2405.15926, section 4.2 and appendix H.2.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import xarray as xr

from ...attention_paths.heads import path_heads
from ...attention_paths.network.weights import Weights

#: Layer and head, both counted from 0.
Head = tuple[int, int]
#: Random stream for the random orders of removal.
RANDOM_ORDERS = 41


def all_heads(heads: Sequence[int]) -> list[Head]:
    return [(layer, head) for layer, count in enumerate(heads) for head in range(count)]


def remaining(heads: Sequence[int], removed: Iterable[Head]) -> np.ndarray:
    """Return whether each path (paths,) avoids all removed heads; no path does if a layer has no head left."""
    through = path_heads(heads)
    left = np.ones(len(through), bool)
    for layer, head in removed:
        left &= through[:, layer] != head
    return left


def rescaling(heads: Sequence[int], removed: Iterable[Head]) -> float:
    """Return prod_l sqrt(H_l / number of heads left in layer l), the published factor; 1 if a layer has none left."""
    lost = [sum(layer == own for layer, _ in removed) for own in range(len(heads))]
    if any(count == gone for count, gone in zip(heads, lost, strict=True)):
        return 1.0
    return math.prod(math.sqrt(count / (count - gone)) for count, gone in zip(heads, lost, strict=True))


def right(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the correctness of each answer: 1 if its sign is the label's, 0 if not, 1/2 if the output is zero."""
    answer = np.sign(outputs) * np.sign(labels)
    return 0.5 * (1.0 + answer)


def without(outputs: np.ndarray, heads: Sequence[int], sets: Sequence[Iterable[Head]]) -> np.ndarray:
    """Return the network's output without each of ``sets`` of heads, (sets, examples).

    ``outputs`` (examples, paths) are those of the paths.
    """
    left = np.stack([remaining(heads, removed) for removed in sets], axis=1)
    return (outputs @ left.astype(float)).T


def first_of(order: Sequence[Head], most: int | None = None) -> list[tuple[Head, ...]]:
    """Return the heads removed after 0, 1, 2, ..., ``most`` (by default all) steps of an order of removal."""
    return [tuple(order[:count]) for count in range((len(order) if most is None else most) + 1)]


def longest(heads: Sequence[int]) -> int:
    """Return the largest number of heads that can be removed with one left in every layer."""
    return sum(heads) - len(heads)


def by_rising(values: np.ndarray, heads: Sequence[int]) -> list[Head]:
    """Return the heads (layer, head) by rising ``values[layer, head]``; heads of equal value keep their order."""
    named = all_heads(heads)
    return sorted(named, key=lambda at: float(values[at]))


def magnitudes(weights: Weights, heads: Sequence[int]) -> np.ndarray:
    """Return the Frobenius norm of every head's value matrix, divided by the mean norm of its layer.

    The shape is (layers, largest number of heads). Layers differ in the size of their values: without the division one
    layer would lose all its heads first.
    """
    found = np.full((len(heads), max(heads)), np.nan)
    for layer, V in enumerate(weights.V):
        norms = np.linalg.norm(np.asarray(V, float), axis=(1, 2))
        found[layer, : heads[layer]] = norms / norms.mean()
    return found


def random_orders(heads: Sequence[int], count: int, seed: int = 0) -> list[list[Head]]:
    """Return ``count`` orders of removal of all heads, drawn uniformly at random."""
    named, rng = all_heads(heads), np.random.default_rng([RANDOM_ORDERS, seed])
    return [[named[k] for k in rng.permutation(len(named))] for _ in range(count)]


def greedy_order(outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int]) -> list[Head]:
    """Return the order in which each next head costs least accuracy on these examples: a reference for others."""
    gone: list[Head] = []
    left = all_heads(heads)
    while left:
        trials = right(without(outputs, heads, [(*gone, head) for head in left]), labels).mean(axis=1)
        gone.append(left.pop(int(trials.argmax())))
    return gone


def removal_curve(outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int], order: Sequence[Head]) -> xr.Dataset:
    """Return correct answers and squared errors after each step of an order, from ``outputs`` (examples, paths).

    Returns
    -------
    Dataset (removed, example)
        ``right`` (0, 1/2 or 1) and ``removed``, the number of removed heads; ``squared_error`` (removed,), and
        ``rescaled_squared_error`` with the published rescaling.
    """
    sets = first_of(order, longest(heads))
    f = without(outputs, heads, sets)
    scale = np.array([rescaling(heads, removed) for removed in sets])[:, None]
    return xr.Dataset(
        {
            "right": (("removed", "example"), right(f, labels)),
            "squared_error": ("removed", ((f - labels) ** 2).mean(axis=1)),
            "rescaled_squared_error": ("removed", ((scale * f - labels) ** 2).mean(axis=1)),
        },
        coords={"removed": np.arange(len(sets))},
    )


def random_curves(
    outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int], orders: Sequence[Sequence[Head]]
) -> xr.DataArray:
    """Return the accuracy (0 to 1) after each step of each order, (order, removed)."""
    most = longest(heads)
    sets = [removed for order in orders for removed in first_of(order, most)]
    accuracy = _accuracies(outputs, labels, heads, sets).reshape(len(orders), most + 1)
    return xr.DataArray(accuracy, dims=("order", "removed"), coords={"removed": np.arange(most + 1)})


def all_of_size(outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int], count: int) -> np.ndarray:
    """Return the accuracy (0 to 1) without each set of ``count`` heads, in the order of `itertools.combinations`."""
    return _accuracies(outputs, labels, heads, list(itertools.combinations(all_heads(heads), count)))


def _accuracies(
    outputs: np.ndarray, labels: np.ndarray, heads: Sequence[int], sets: Sequence[Iterable[Head]]
) -> np.ndarray:
    """Return the accuracies (sets,), 0 to 1, without many sets of heads, in chunks that fit into memory."""
    step = max(1, 2**24 // len(outputs))
    chunks = [sets[first : first + step] for first in range(0, len(sets), step)]
    return np.concatenate([right(without(outputs, heads, chunk), labels).mean(axis=1) for chunk in chunks])
