"""Pruning: networks, data and results without some of their heads.

Tiberi et al., arXiv:2405.15926, section 4.2 (head pruning): heads are left out of a trained network without retraining.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import xarray as xr

from ..core.result import Result
from ..numerics import checks
from .heads import found_order_parameter, network_of, path_heads
from .network.attended_inputs import AttendedInputs
from .network.path_network import AttentionPaths
from .network.weights import Weights, checked_weights
from .training.trained_paths import TrainedPaths

#: Heads as pairs (layer, head) counted from zero, or as strings counted from one: "layer 1 head 2" is (0, 1).
Heads = Iterable[tuple[int, int] | str]
Prunable = TypeVar("Prunable", AttentionPaths, AttendedInputs, Weights, TrainedPaths, Result)

#: Variables of a result that hold only for the whole network; pruned results lack them.
_OF_THE_WHOLE = ("action", "gradient_norm", "chain_state", "path_weights_draws")


def prune(whole: Prunable, heads: Heads, *, rescale: bool = True) -> Prunable:
    """Return a network, its data, its weights or a result without some heads.

    A network, its data and its weights lose the heads. The smaller network divides the sum of layer l by the square
    root of the number of remaining heads, as in the published experiment. With ``rescale=False`` the values of weights
    and of trained networks are multiplied by sqrt(remaining heads / heads before): then the output is that of the whole
    network with the outputs of these heads set to zero.

    A result keeps its network, and the rows and columns of its order parameter that belong to paths through the named
    heads become zero. Predictions then have the kernel

        K(x, x') = (s_0 / d) sum over the remaining pi, pi' of U^{pi pi'} C_{pi pi'}(x, x')

    with the prefactor of all d paths, the order parameter learned by all of them, and the prior variance s_0 of the
    projection: the projection is fitted anew to the labels. To take heads out of a trained network without fitting
    anything anew, call ``predict(inputs, without=heads)`` or ``evaluate(inputs, labels, without=heads)`` on the
    unpruned result.

    Parameters
    ----------
    whole : AttentionPaths, AttendedInputs, Weights, TrainedPaths or Result
        The object to prune. A network without ``query_key`` expects data that were pruned of the same heads. A result
        is that of a PathPosterior problem, solved or sampled.
    heads : sequence of pairs (layer, head), or of strings such as "layer 1 head 2"
        Heads to leave out. Pairs are positions and count from zero. Strings count from one, as the labels of results
        and :func:`head_scores` do: "layer 1 head 2" is (0, 1). A layer must keep at least one head.
    rescale : bool
        Divide the sum of a layer by the square root of the remaining heads; False only for Weights and TrainedPaths.

    Returns
    -------
    Object of the type of ``whole``
        A result and a trained network list the pruned pairs in ``settings["pruned"]``, counted in the whole network.

    Examples
    --------
    >>> import asymptotix as asx
    >>> asx.prune(asx.AttentionPaths(layers=2, heads=4), [(0, 2), (1, 0), (1, 3)]).heads
    (3, 2)
    >>> asx.prune(asx.AttentionPaths(layers=2, heads=4), ["layer 1 head 3", "layer 2 head 1"]).heads
    (3, 3)
    """
    checks.one_of("rescale", rescale, (True, False))
    if not rescale and not isinstance(whole, Weights | TrainedPaths):
        raise ValueError(f"rescale must be True but for Weights and TrainedPaths, got {type(whole).__name__}")
    if isinstance(whole, AttentionPaths):
        return _network(whole, heads)
    if isinstance(whole, AttendedInputs):
        kept = remaining_heads([A.shape[1] for A in whole.attention], heads)
        return AttendedInputs(whole.tokens, tuple(A[:, keep] for A, keep in zip(whole.attention, kept, strict=True)))
    if isinstance(whole, Weights):
        weights = checked_weights(whole)
        kept = remaining_heads([len(V) for V in weights.V], heads)
        shares = [1.0 if rescale else math.sqrt(keep.mean()) for keep in kept]
        return weights._replace(V=tuple(s * V[keep] for s, V, keep in zip(shares, weights.V, kept, strict=True)))
    if isinstance(whole, TrainedPaths):
        return whole.with_heads(remaining_heads([len(V) for V in whole.trained.values], heads), rescale=rescale)
    if isinstance(whole, Result):
        found_order_parameter(whole)
        return _result(whole, heads)
    raise TypeError(
        "whole must be an AttentionPaths, AttendedInputs, Weights, TrainedPaths or the result of a PathPosterior "
        f"problem, got {type(whole).__name__}"
    )


def remaining_heads(counts: Sequence[int], heads: Heads, name: str = "heads") -> list[np.ndarray]:
    """Return one boolean array (H_l,) per layer, false at the heads to remove, ``heads``.

    ``counts`` are H_1, ..., H_L. Errors call the argument ``name``.
    """
    kept = [np.ones(H, bool) for H in counts]
    for layer, head in _pairs(name, heads):
        got = f"got the pair {(layer, head)}, in words 'layer {layer + 1} head {head + 1}'"
        if not 0 <= layer < len(counts):
            raise ValueError(
                f"{name} must name layers from 0 to {len(counts) - 1} (in words 1 to {len(counts)}), {got}"
            )
        if not 0 <= head < counts[layer]:
            raise ValueError(
                f"{name} must name heads from 0 to {counts[layer] - 1} in layer {layer} "
                f"(in words 1 to {counts[layer]} in layer {layer + 1}), {got}"
            )
        kept[layer][head] = False
    for layer, keep in enumerate(kept):
        if not keep.any():
            raise ValueError(
                f"{name} must leave layer {layer} (in words layer {layer + 1}) at least one head, got all "
                f"{len(keep)} of them"
            )
    return kept


def remaining_paths(counts: Sequence[int], heads: Heads, name: str = "heads") -> np.ndarray:
    """Return a boolean array (paths,) that marks the paths through none of the named heads."""
    kept = remaining_heads(counts, heads, name)
    return np.all([keep[h] for keep, h in zip(kept, path_heads(counts).T, strict=True)], axis=0)


def _network(network: AttentionPaths, heads: Heads) -> AttentionPaths:
    kept = remaining_heads(network.heads, heads)
    if network.query_key is None:
        return AttentionPaths(heads=[int(keep.sum()) for keep in kept], readout=network.readout)
    query_key = [W[keep] for W, keep in zip(network.query_key, kept, strict=True)]
    return AttentionPaths(query_key=query_key, readout=network.readout)


def _result(result: Result, heads: Heads) -> Result:
    pruned = tuple(sorted({*_pairs("heads", result.settings.get("pruned", ())), *_pairs("heads", heads)}))
    kept = remaining_paths(network_of(result).heads, pruned)
    ds = result.ds.drop_vars(_OF_THE_WHOLE, errors="ignore")
    for dim in ("path", "path_other"):
        on = xr.DataArray(kept, dims=dim)
        # A failed point, or a draw that an interrupted run lacks, is nan and stays nan.
        ds = ds.assign({name: x.where(on | x.isnull(), 0.0) for name, x in ds.data_vars.items() if dim in x.dims})
    return Result(
        ds,
        problem=result.problem,
        kind=result.kind,
        algorithm=result.algorithm,
        settings=result.settings | {"pruned": pruned},
        provenance=result.provenance,
    )


def _pairs(name: str, heads: Heads) -> list[tuple[int, int]]:
    try:
        pairs = [(layer, head) for layer, head in (_from_words(one) if isinstance(one, str) else one for one in heads)]
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a sequence of pairs (layer, head), both counted from 0, or of words such as "
            f"'layer 1 head 2', both counted from one, got {heads!r}"
        ) from None
    return [(checks.integer(name, layer), checks.integer(name, head)) for layer, head in pairs]


def _from_words(head: str) -> tuple[int, int]:
    found = re.fullmatch(r"layer (\d+) head (\d+)", head)
    if found is None:
        raise ValueError(head)
    return int(found[1]) - 1, int(found[2]) - 1
