"""What the order parameter says of single heads."""

from __future__ import annotations

import numpy as np
import xarray as xr

from ..core import checks
from ..core.result import Result

RULES = ("both", "either")


def path_heads(heads: tuple[int, ...]) -> np.ndarray:
    """Head of every layer on every path, (paths, layers); the first layer's head is the slowest index."""
    return np.stack([index.ravel() for index in np.indices(heads)], axis=1)


def scores(U: np.ndarray, heads: tuple[int, ...], rule: str = "both", normalize: bool = True) -> np.ndarray:
    """Score of every head, (layers, largest number of heads), nan where a layer has fewer.

    The sum of |U^{pi pi'}| over pairs of paths that "both" pass through the head, or of which "either" does.
    """
    checks.one_of("rule", rule, RULES)
    through = path_heads(heads)
    found = np.full((len(heads), max(heads)), np.nan)
    size = abs(np.asarray(U, float))
    for layer, count in enumerate(heads):
        for head in range(count):
            on = through[:, layer] == head
            pairs = np.logical_and.outer(on, on) if rule == "both" else np.logical_or.outer(on, on)
            found[layer, head] = size[pairs].sum()
    return found / np.nanmax(found) if normalize else found


def head_scores(result: Result, rule: str = "both", normalize: bool = True) -> xr.DataArray:
    """Importance of every head by the order parameter of a solved or sampled network.

    Parameters
    ----------
    result : Result
        Of a PathPosterior problem; other dimensions (width, ...) are kept.
    rule : "both" or "either"
        Which pairs of paths count: those of which both members pass through the head, or at least one does.
    normalize : bool
        Divide by the largest score.

    Returns
    -------
    DataArray (..., layer, head)
    """
    if not isinstance(result, Result) or "order_parameter" not in result.ds:
        raise TypeError(f"result must be that of a PathPosterior problem, got {type(result).__name__}")
    U = result.ds["order_parameter"].transpose(..., "path", "path_other")
    heads = tuple(result.problem.network.heads)  # type: ignore[attr-defined]
    flat = U.values.reshape(-1, *U.shape[-2:])
    found = np.stack([scores(matrix, heads, rule, normalize) for matrix in flat])
    dims = [str(dim) for dim in U.dims[:-2]]
    coords = {dim: U.coords[dim] for dim in dims if dim in U.coords}
    values = found.reshape(*U.shape[:-2], *found.shape[1:])
    return xr.DataArray(values, dims=[*dims, "layer", "head"], coords=coords, name="head_score")
