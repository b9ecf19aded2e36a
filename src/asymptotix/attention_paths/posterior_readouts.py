"""Readouts of a path posterior's result: predictions at new inputs, their quality, the kernel and its alignment.

Tiberi et al., arXiv:2405.15926, eqs. (9) and (30) for the predictions, sections 3.2 and 4.1 for kernel-task alignment.
Every point of a result (of its grid and of its seeds) has its own predictor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import xarray as xr

from ..core.result import Result
from ..numerics import checks
from .heads import found_order_parameter
from .network.attended_inputs import Inputs, in_chunks, tokens_of
from .network.given_arrays import labels_of_examples, require_same_classes
from .network.path_network import AttentionPaths
from .predictors.draws_average import DrawsPredictor
from .predictors.gaussian_process import NoPrediction, Predictor
from .pruning import Heads, remaining_paths

#: Bytes of the attended inputs of test examples that are in memory at a time. Smaller: more chunks, slower.
_CHUNK_BYTES = 2**28

AnyPredictor = Predictor | DrawsPredictor | NoPrediction


class LearnedPosterior(Protocol):
    """A problem whose results can predict: it has a network, training data and a prior."""

    @property
    def network(self) -> AttentionPaths: ...

    @property
    def inputs(self) -> Inputs: ...

    @property
    def labels(self) -> np.ndarray: ...

    @property
    def temperature(self) -> float: ...

    @property
    def prior_variances(self) -> tuple[float, ...]: ...

    @cached_property
    def attended(self) -> np.ndarray:
        """Attended inputs of the training examples, (P, paths, N0)."""
        ...

    def dimensions(self) -> Mapping[str, tuple[str, ...]]: ...

    def swept(self, dims: Iterable[str]) -> list[str]:
        """Return the names in ``dims`` (grid dimensions) that are numeric fields of this problem."""
        ...

    def at(self, fields: Mapping[str, float]) -> Self:
        """Return this problem with new values of some fields; ``fields`` is field -> value."""
        ...


def predict(
    problem: LearnedPosterior, result: Result, inputs: Inputs, without: Heads | None
) -> tuple[xr.DataArray, xr.DataArray]:
    """Return mean and variance, (..., example) or (..., example, output); see :meth:`PathPosterior.predict`."""
    removed = ~remaining_paths(problem.network.heads, () if without is None else without, "without")
    features, given = np.shape(tokens_of(problem.inputs))[-1], np.shape(tokens_of(inputs))
    if given[-1] != features:
        raise ValueError(f"inputs must have {features} features like those learned from, got shape {given}")
    parts, predictors = [], list(_predictors(problem, result))
    step = max(1, _CHUNK_BYTES // (8 * problem.network.paths * features))
    for chunk in in_chunks(inputs, step):
        attended: dict[int, np.ndarray] = {}
        for network, _ in predictors:
            if id(network) not in attended:
                attended[id(network)] = network.attended(chunk)
                attended[id(network)][:, removed] = 0.0
        parts.append([predictor(attended[id(network)]) for network, predictor in predictors])
    # The first index is the point of the result, the second one the chunk.
    points = list(zip(*parts, strict=True))
    dims = ("example", "output")[: problem.labels.ndim]
    means = [np.concatenate([part.mean for part in point]) for point in points]
    variances = [np.concatenate([part.variance for part in point]) for point in points]
    return _labelled(problem, result, means, dims), _labelled(problem, result, variances, dims)


def evaluate(
    problem: LearnedPosterior,
    result: Result,
    inputs: Inputs,
    labels: np.ndarray,
    without: Heads | None,
) -> xr.Dataset:
    """Return ``accuracy``, ``test_error`` and ``variance`` of the predictions; see :meth:`PathPosterior.evaluate`."""
    labels = labels_of_examples(labels, len(tokens_of(inputs)))
    outputs = problem.labels.shape[1:]
    if labels.shape[1:] != outputs:
        wanted = f"(examples, {outputs[0]})" if outputs else "(examples,)"
        raise ValueError(f"labels must have shape {wanted} like those learned from, got {labels.shape}")
    require_same_classes(labels, problem.labels)
    mean, variance = predict(problem, result, inputs, without)
    over = ("example", "output")[: labels.ndim]
    target = xr.DataArray(labels, dims=over)
    if outputs and outputs[0] >= 2:
        right = mean.fillna(-np.inf).argmax("output") == target.argmax("output")
    else:
        right = np.sign(mean) == np.sign(target)
    return xr.Dataset(
        {
            # A failed point is nan and must stay nan, so means do not skip nan.
            "accuracy": right.where(mean.notnull()).mean(over, skipna=False),
            "test_error": ((mean - target) ** 2).mean(over, skipna=False),
            "variance": variance.mean(over, skipna=False),
        }
    )


def alignment(problem: LearnedPosterior, result: Result, count: int) -> xr.DataArray:
    """Return the labels' overlaps (..., component) with the kernel's eigenvectors; see `PathPosterior.alignment`."""
    count = checks.integer("count", count, 1)
    rows = [predictor.alignment(count) for _, predictor in _predictors(problem, result)]
    return _labelled(problem, result, rows, ("component",))


def kernel(problem: LearnedPosterior, result: Result) -> xr.DataArray:
    """Return the kernel between the training examples, (..., example, example_other); see `PathPosterior.kernel`."""
    rows = [predictor.kernel for _, predictor in _predictors(problem, result)]
    dims = ("output", "example")[-problem.labels.ndim :]
    return _labelled(problem, result, rows, (*dims, *(f"{dim}_other" for dim in dims)))


def _predictors(problem: LearnedPosterior, result: Result) -> Iterator[tuple[AttentionPaths, AnyPredictor]]:
    """Yield (network, predictor) of every point of the result's grid, the last dimension fastest."""
    U = _order_parameter(problem, result)
    grid = _grid(problem, U)
    swept = problem.swept(grid)
    known: dict[tuple[float, ...], LearnedPosterior] = {}
    for place in np.ndindex(*grid.values()):
        position = dict(zip(grid, place, strict=True))
        fields = {dim: U.coords[dim].values[position[dim]].item() for dim in swept}
        key = tuple(fields.values())
        if key not in known:
            known[key] = problem.at(fields)
        own = known[key]
        # Points that differ only in, for example, the temperature share the network and its attended inputs.
        xi = problem.attended if own.network is problem.network else own.attended
        yield own.network, _predictor(own, xi, result, U.values[place], position)


def _predictor(
    problem: LearnedPosterior, xi: np.ndarray, result: Result, U: np.ndarray, position: Mapping[str, int]
) -> AnyPredictor:
    """Return the predictor of one point, by its draws if there are any, otherwise by U.

    ``xi`` (P, paths, N0) are attended training inputs; ``position`` is dimension -> index of the point.
    """
    if not np.isfinite(U).all():
        return NoPrediction(problem.labels)
    predictor = Predictor(xi, problem.labels, U, problem.temperature, problem.prior_variances[0])
    draws = _draws(problem, result, "order_parameter_draws", position)
    if draws is None:
        return predictor
    return DrawsPredictor(predictor, draws, _draws(problem, result, "path_weights_draws", position))


def _draws(problem: LearnedPosterior, result: Result, name: str, position: Mapping[str, int]) -> np.ndarray | None:
    """Return the finite draws of variable ``name`` at a point, (draws, ...); None if the result has no draws.

    ``position`` is dimension -> index of the point. Missing draws of an interrupted run are nan.
    """
    if name not in result.ds:
        return None
    order = ("draw", *problem.dimensions()["order_parameter"], "feature")
    rows = result.ds[name].isel(position).transpose(*order, missing_dims="ignore")
    return rows.values[np.isfinite(rows.values.reshape(len(rows), -1)).all(axis=1)]


def _order_parameter(problem: LearnedPosterior, result: Result) -> xr.DataArray:
    return found_order_parameter(result).transpose(..., *problem.dimensions()["order_parameter"])


def _grid(problem: LearnedPosterior, U: xr.DataArray) -> dict[str, int]:
    """Return dimension -> length for the dimensions of ``U`` that are not those of a single order parameter."""
    own = problem.dimensions()["order_parameter"]
    return {str(dim): length for dim, length in U.sizes.items() if dim not in own}


def _labelled(problem: LearnedPosterior, result: Result, rows: list[np.ndarray], dims: tuple[str, ...]) -> xr.DataArray:
    """Return ``rows``, one array of dimensions ``dims`` per point, as one array over the grid of the result."""
    U = _order_parameter(problem, result)
    grid = _grid(problem, U)
    values = np.stack(rows).reshape(*grid.values(), *rows[0].shape)
    coords = {name: coord for name, coord in U.coords.items() if set(coord.dims) <= set(grid)}
    return xr.DataArray(values, dims=[*grid, *dims], coords=coords)
