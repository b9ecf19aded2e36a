"""The order parameter of given weights, and scores of single heads computed from an order parameter.

Tiberi et al., arXiv:2405.15926, eq. (13) for the order parameter of weights; section 4.2 (head pruning) for the score,
whose formula has no number. The released code differs from that formula: rule "both" is the formula, "either" the
code.

Equations ap-meaning, ap-score of docs/theory/attention_paths.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from ..core.result import Result
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory
from .network.path_network import AttentionPaths
from .network.weights import SCALINGS, Weights, checked_weights, path_products

RULES = ("both", "either")


def path_heads(heads: Sequence[int]) -> np.ndarray:
    """Return each path's head, from 0, in every layer, (paths, layers); the first layer's head varies slowest."""
    return np.stack([index.ravel() for index in np.indices(heads)], axis=1)


def path_names(heads: Sequence[int]) -> list[str]:
    """Return the name of every path, such as "1-3": its heads from the first layer to the last, counted from one.

    ``heads`` are the numbers of heads per layer. The first layer's head varies slowest.

    >>> path_names((2, 2))
    ['1-1', '1-2', '2-1', '2-2']
    """
    return ["-".join(str(head + 1) for head in path) for path in path_heads(heads)]


def scores(U: np.ndarray, heads: tuple[int, ...], rule: str = "both", normalize: bool = True) -> np.ndarray:
    """Return the score of every head, (..., layers, largest number of heads); nan where a layer has fewer heads.

    The score is the sum of |U^{pi pi'}| over the pairs of paths of which both (rule "both") or at least one ("either")
    pass through the head. U has shape (..., paths, paths), and ``heads`` are the numbers of heads per layer. With
    ``normalize``, the scores of each matrix U are divided by the largest of them.
    """
    checks.one_of("rule", rule, RULES)
    checks.one_of("normalize", normalize, (True, False))
    size = np.abs(np.asarray(U, float))
    through = path_heads(heads)
    found = np.full((*size.shape[:-2], len(heads), max(heads)), np.nan)
    for layer, count in enumerate(heads):
        on = (through[:, layer] == np.arange(count)[:, None]).astype(float)
        block = np.einsum("hp,...pq,hq->...h", on, size, on, optimize=True)
        if rule == "either":
            block = (size.sum(-1) + size.sum(-2)) @ on.T - block
        found[..., layer, :count] = block
    if not normalize:
        return found
    # Where U is zero there is nothing to divide by. A failed point (nan) stays nan.
    peak = np.fmax.reduce(found, axis=(-2, -1), keepdims=True)
    return found / np.where(peak == 0, 1.0, peak)


def head_scores(
    order_parameter: Result | ArrayLike,
    rule: str = "both",
    normalize: bool = True,
    heads: Sequence[int] | AttentionPaths | None = None,
) -> xr.DataArray:
    """Return the importance of every head in a solved, sampled or trained network, from its order parameter U.

    The score of a head is the sum of |U^{pi pi'}| over pairs of paths through it. With several outputs,
    |U^{(pi c)(pi' c')}| is also summed over the outputs.

    Parameters
    ----------
    order_parameter : Result or array
        Result of a PathPosterior problem: its other dimensions (width, ...) are kept, and each run is scored by its
        own mean U. Or the array U itself, (paths, paths) or (paths, outputs, paths, outputs).
    rule : "both" or "either"
        Pairs of paths that count: both paths pass through the head, or at least one of them does.
    normalize : bool
        Divide by the largest score.
    heads : sequence of int or AttentionPaths, optional
        H_1, ..., H_L, needed for an array.

    Returns
    -------
    DataArray (..., layer, head)
        The coordinates ``layer`` and ``head`` count from one: ``scores.sel(layer=1, head=2)``. Heads that a layer does
        not have are nan. :func:`prune` names the same head "layer 1 head 2", or by its positions counted from zero,
        (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> found = asx.head_scores(np.diag([4.0, 1.0, 2.0, 1.0]), heads=(2, 2))
    >>> float(found.sel(layer=1, head=2)), found.layer.values.tolist()
    (0.5, [1, 2])
    """
    if isinstance(order_parameter, Result):
        U, counts = _of_result(order_parameter, heads)
    else:
        U, counts = _of_array(order_parameter, heads)
    found = scores(U.values, counts, rule, normalize)
    dims = [str(dim) for dim in U.dims[:-2]]
    coords: dict[Hashable, object] = {
        name: U.coords[name] for name in U.coords if set(U.coords[name].dims) <= set(dims)
    }
    coords |= {"layer": np.arange(1, len(counts) + 1), "head": np.arange(1, max(counts) + 1)}
    return xr.DataArray(found, dims=[*dims, "layer", "head"], coords=coords, name="head_score")


def empirical_order_parameter(weights: Weights, scaling: str = "order one") -> np.ndarray:
    """Return the order parameter U^{pi pi'} = Veff^pi . Veff^pi' / N_1 of given weights, such as trained ones.

    Veff^pi are the effective weights of path pi (:meth:`AttentionPaths.effective_weights`), a vector of length N_1. The
    theory's order parameter describes the mean of this matrix under the posterior.

    Parameters
    ----------
    weights : Weights
        The rows of V^{l,h} are outputs, (heads, width out, width in). ``torch.nn.Linear.weight`` is stored in this
        order, (out, in): stack one per head, without transposing.
    scaling : "order one" or "fan_in"
        Size of the entries: W of order one, as everywhere here, or w = W/sqrt(fan-in), as is usual in training. For w,
        U^{pi pi'} = E^pi . E^pi' with E^pi = a^T w^{L,h_L} ... w^{1,h_1} and no further factor. With both scalings the
        factor 1/sqrt(H_l) of a sum over heads belongs to the network, not to the weights.

    Returns
    -------
    array (paths, paths), or (paths, C, paths, C) for C outputs
        The first layer's head varies slowest.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> rng = np.random.default_rng(0)
    >>> weights = asx.Weights(rng.standard_normal((8, 4)), [rng.standard_normal((2, 8, 8))], rng.standard_normal(8))
    >>> asx.empirical_order_parameter(weights).shape                     # one layer of two heads: two paths
    (2, 2)
    """
    checks.one_of("scaling", scaling, SCALINGS)
    checked = checked_weights(weights)
    E = path_products(checked)
    rows = E.reshape(-1, E.shape[-1])
    what = f"the order parameter of {len(rows)} paths x outputs"
    refuse_beyond_memory(8 * len(rows) ** 2, what, "fewer heads or layers")
    if scaling == "order one":
        widths = [checked.V0.shape[0], *(V.shape[1] for V in checked.V)]
        rows = rows / math.sqrt(math.prod(widths))
    return (rows @ rows.T).reshape(*E.shape[:-1], *E.shape[:-1])


def _of_result(result: Result, heads: Sequence[int] | AttentionPaths | None) -> tuple[xr.DataArray, tuple[int, ...]]:
    """Return |U| summed over the outputs, (..., path, path_other), and the numbers of heads H_1, ..., H_L."""
    U, counts = found_order_parameter(result), network_of(result).heads
    if heads is not None and _counts(heads) != counts:
        raise ValueError(f"heads must be those of the result's network, {counts}, or left out, got {heads!r}")
    return _summed(U), counts


def network_of(result: Result) -> AttentionPaths:
    """Return the network of the result of a PathPosterior problem; any other problem is a TypeError that names it."""
    network = getattr(result.problem, "network", None)
    if not isinstance(network, AttentionPaths):
        raise TypeError(f"result must be that of a PathPosterior problem, got one of {type(result.problem).__name__}")
    return network


def found_order_parameter(result: Result) -> xr.DataArray:
    """Return the order parameter of a PathPosterior result; if it has none, raise an error that quotes the status."""
    if "order_parameter" in result.ds:
        return result.ds["order_parameter"]
    network_of(result)
    raise ValueError(f"result must have an order parameter at some point, got none: {result.status.values.flat[0]}")


def _of_array(given: ArrayLike, heads: Sequence[int] | AttentionPaths | None) -> tuple[xr.DataArray, tuple[int, ...]]:
    if heads is None:
        raise ValueError("heads must be given with an array: the heads per layer, or the network; got None")
    counts = _counts(heads)
    d = math.prod(counts)
    U = checks.real_array("order_parameter", given)
    outputs = U.shape[1] if U.ndim == 4 else None
    shape = (d, d) if outputs is None else (d, outputs, d, outputs)
    U = checks.array_of_shape("order_parameter", U, shape)
    dims = ("path", "path_other") if outputs is None else ("path", "output", "path_other", "output_other")
    return _summed(xr.DataArray(U, dims=dims)), counts


def _counts(heads: Any) -> tuple[int, ...]:
    if isinstance(heads, AttentionPaths):
        return heads.heads
    if isinstance(heads, str) or checks.dimensions("heads", heads) != 1 or len(heads) == 0:
        raise TypeError(f"heads must be a sequence of heads per layer or an AttentionPaths, got {heads!r}")
    return tuple(checks.integer(f"heads[{layer}]", H, 1) for layer, H in enumerate(heads))


def _summed(U: xr.DataArray) -> xr.DataArray:
    outputs = [dim for dim in ("output", "output_other") if dim in U.dims]
    # A failed point is nan; a sum that skips nan would turn it into zero.
    return abs(U).sum(outputs, skipna=False).transpose(..., "path", "path_other")
