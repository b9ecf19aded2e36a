"""Bayesian value weights on trained heads: right answers, order parameter and alignment at every width and temperature.

The temperature is chosen width by width on examples of the validation classes. The paper chose it on its test examples:
both choices are made here, and their difference is a number.

Tiberi et al., arXiv:2405.15926, section 4.2.1 and appendix H.2.1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.linalg import cho_factor, cho_solve

import asymptotix as asx

from ...attention_paths.network.attended_inputs import in_chunks
from ...attention_paths.network.path_network import AttentionPaths

if TYPE_CHECKING:
    from ...tasks.one_shot import OneShotTask

#: What is asked after learning: classes of Omniglot that choose the temperature, others of it, and two other data sets.
VALIDATION, OMNIGLOT, MNIST, FASHION = SETS = ("validation", "omniglot", "mnist", "fashion-mnist")
#: Queries of each class that the other data sets have: more sequences would ask for the same images again.
MOST_OTHERS = 2000
#: Components of the kernel whose overlap with the labels is shown.
COMPONENTS = 50
#: Draws of a chain that predictions are averaged over; each takes a factorisation, and their mean changes little.
PREDICTED = 50
#: Examples attended at a time.
CHUNK = 500

Asked = Mapping[str, tuple[np.ndarray, np.ndarray]]


def asked_of(task: OneShotTask) -> Asked:
    """Inputs and labels of every set."""
    count = min(len(task.test_labels), MOST_OTHERS)
    return {
        VALIDATION: (task.validation_inputs, task.validation_labels),
        OMNIGLOT: (task.test_inputs, task.test_labels),
        MNIST: task.out_of_distribution(MNIST, count),
        FASHION: task.out_of_distribution(FASHION, count),
    }


def over_widths(
    network: AttentionPaths,
    inputs: np.ndarray,
    labels: np.ndarray,
    asked: Asked,
    *,
    widths: Sequence[float],
    temperatures: Sequence[float],
) -> xr.Dataset:
    """Theory at every width and temperature.

    Returns
    -------
    Dataset (temperature, width, ...)
        ``right_SET`` (temperature, width, example_SET): one where the sign of the mean is the label's.
        ``order_parameter``, ``alignment`` and ``converged``.
    """
    problem = asx.PathPosterior(network, inputs, labels)
    grid: dict[str, Any] = {"temperature": [float(T) for T in temperatures], "width": [float(N) for N in widths]}
    with warnings.catch_warnings():  # that widths are below the number of paths is what the figure looks at
        warnings.simplefilter("ignore", RuntimeWarning)
        theory = asx.solve(problem, progress=False, **grid)
    rows = mean_rows(problem, theory)
    found = {f"right_{name}": _right(network, rows, name, *given) for name, given in asked.items()}
    own = {name: theory.ds[name].drop_attrs() for name in ("order_parameter", "converged")}
    made = xr.Dataset({**found, **own, "alignment": theory.alignment(min(COMPONENTS, len(labels)))})
    return made.transpose("temperature", "width", ...).reset_coords(drop=True).assign_coords(grid)


def mean_rows(problem: asx.PathPosterior, theory: asx.Result) -> xr.DataArray:
    """w^pi of every point of a solution, (..., path, feature): the mean at x is sum_pi w^pi . xi^pi(x).

    The same as `theory.predict`, which also finds the variance, at many times the cost.
    """
    xi, Y = problem.attended, problem.labels
    P, d, features = xi.shape
    U = theory.order_parameter

    def at(K: np.ndarray, u: np.ndarray, temperature: float) -> np.ndarray:
        dual = cho_solve(cho_factor(K + temperature * np.eye(P), lower=True), Y)
        projected = (dual @ xi.reshape(P, -1)).reshape(d, features)
        return problem.prior_variances[0] / (d * features) * (u @ projected)

    dims = [dim for dim in U.dims if dim not in ("path", "path_other")]
    rows = np.empty((*(U.sizes[dim] for dim in dims), d, features))
    for place in np.ndindex(*rows.shape[:-2]):
        point = theory.isel(dict(zip(dims, place, strict=True)))
        temperature = float(point.ds.coords.get("temperature", problem.temperature))
        rows[place] = at(point.kernel().values, point.order_parameter.values, temperature)
    return xr.DataArray(rows, dims=[*dims, "path", "feature"])


def _right(
    network: AttentionPaths, rows: xr.DataArray, name: str, inputs: np.ndarray, labels: np.ndarray
) -> xr.DataArray:
    """Where the sign of the mean is the label's, (..., example_SET)."""
    flat = rows.values.reshape(-1, rows.shape[-2] * rows.shape[-1])
    parts = [network.attended(chunk).reshape(len(chunk), -1) @ flat.T for chunk in in_chunks(inputs, CHUNK)]
    mean = np.concatenate(parts).T.reshape(*rows.shape[:-2], len(labels))
    return xr.DataArray((np.sign(mean) == np.sign(labels)).astype(np.int8), dims=[*rows.dims[:-2], f"example_{name}"])


def sampled(
    network: AttentionPaths,
    inputs: np.ndarray,
    labels: np.ndarray,
    asked: Asked,
    *,
    width: int,
    temperature: float,
    chains: int,
    warmup: int,
    draws: int,
    progress: bool | None = False,
) -> xr.Dataset:
    """Exact sampling of the order parameter at one width and temperature, by several chains.

    Returns
    -------
    Dataset
        ``right_SET`` (example_SET,) of the mean over all chains, ``order_parameter`` and its Monte Carlo error,
        ``r_hat``, ``effective_samples`` (the smallest over entries, of all chains together), ``divergences``,
        ``leapfrog_steps``, ``cpu_seconds``.
    """
    problem = asx.PathPosterior(network, inputs, labels, temperature=temperature)
    sampler = asx.NUTS(warmup=warmup, draws=draws)
    runs = asx.simulate(problem, sampler, width=float(width), seeds=chains, progress=progress)
    found = {name: runs.ds[name].mean("seed") for name in ("order_parameter", "r_hat", "leapfrog_steps")}
    # Chains are independent: the error of their mean, and their effective samples together.
    found["order_parameter_err"] = (runs.ds["order_parameter_err"] ** 2).sum("seed") ** 0.5 / chains
    found |= {name: runs.ds[name].sum("seed") for name in ("effective_samples", "divergences", "cpu_seconds")}
    few = runs.isel(draw=slice(None, None, max(1, draws // PREDICTED)))
    for name, (x, y) in asked.items():
        mean = few.predict(x)[0].mean("seed").values
        found[f"right_{name}"] = xr.DataArray((np.sign(mean) == np.sign(y)).astype(np.int8), dims=f"example_{name}")
    return xr.Dataset({name: values.drop_attrs() for name, values in found.items()}).reset_coords(drop=True)


class Chosen(NamedTuple):
    """Numbers of several draws of the examples learned from, at the temperature that each of them chose by width.

    Attributes
    ----------
    temperature, on_test : DataArray (draw, width)
        Chosen on validation examples, and what the test examples would have chosen.
    right : dict of str to DataArray (draw, width, example)
        By set, at the temperature chosen on validation examples.
    right_on_test : DataArray (draw, width, example)
        Of the test set, at the temperature chosen on itself.
    order_parameter, alignment : DataArray (draw, width, ...)
        At the temperature chosen on validation examples.
    """

    temperature: xr.DataArray
    on_test: xr.DataArray
    right: dict[str, xr.DataArray]
    right_on_test: xr.DataArray
    order_parameter: xr.DataArray
    alignment: xr.DataArray


def chosen(draws: Sequence[xr.Dataset]) -> Chosen:
    """Choose the temperatures of every draw by itself."""
    joined = joined_draws(draws)
    temperature, on_test = (best_temperature(right_in(joined, name)) for name in (VALIDATION, OMNIGLOT))
    return Chosen(
        temperature=temperature,
        on_test=on_test,
        right={name: right_in(joined, name).sel(temperature=temperature) for name in SETS},
        right_on_test=right_in(joined, OMNIGLOT).sel(temperature=on_test),
        order_parameter=joined["order_parameter"].sel(temperature=temperature),
        alignment=joined["alignment"].sel(temperature=temperature),
    )


def joined_draws(draws: Sequence[xr.Dataset]) -> xr.Dataset:
    """All draws in one table, (draw, ...)."""
    joined = xr.concat([draw.drop_attrs() for draw in draws], dim="draw")
    assert isinstance(joined, xr.Dataset)
    return joined


def right_in(numbers: xr.Dataset, name: str) -> xr.DataArray:
    """What is right in a set, (..., example)."""
    return numbers[f"right_{name}"].rename({f"example_{name}": "example"})


def best_temperature(right: xr.DataArray) -> xr.DataArray:
    """The temperature with most right answers; of several the middle one (of two the lower), the optimum being flat."""
    score = right.mean("example")
    best = score == score.max("temperature")
    middle = best & (best.cumsum("temperature") == (best.sum("temperature") + 1) // 2)
    return right.temperature[middle.argmax("temperature")].drop_vars("temperature")


class Share(NamedTuple):
    """Percent, with its error."""

    value: np.ndarray
    error: np.ndarray


def accuracy(right: xr.DataArray) -> Share:
    """Mean over draws and examples in percent, (...); ``right`` may also be a difference of two such arrays.

    Its variance is that over draws of the examples learned from, which is known where there are several, and that over
    the examples asked, which all draws have in common.
    """
    values = 100 * right.astype(float)
    variance = values.mean("draw").var("example", ddof=1) / values.sizes["example"]
    if (draws := values.sizes["draw"]) > 1:
        variance = variance + values.mean("example").var("draw", ddof=1) / draws
    return Share(values.mean(("draw", "example")).values, (variance**0.5).values)


def gain(first: xr.DataArray, second: xr.DataArray) -> tuple[float, float]:
    """How many points more the first gets right, example by example, with the error of that."""
    share = accuracy(first.astype(float) - second.astype(float))
    return float(share.value), float(share.error)
