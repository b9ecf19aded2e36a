"""Bayesian value weights on trained heads: accuracy, order parameter, alignment at every width and temperature.

The temperature is chosen for every width on examples of the validation classes. The paper chose it on its test
examples; both choices are made here, so that their difference is known.

Tiberi et al., arXiv:2405.15926, section 4.2.1 and appendix H.2.1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

import asymptotix as asx

from ...attention_paths.network.attended_inputs import in_chunks
from ...attention_paths.network.path_network import AttentionPaths
from ...attention_paths.predictors.gaussian_process import Predictor
from ...numerics.threads import in_threads, one_blas_thread

if TYPE_CHECKING:
    from ...tasks.one_shot import OneShotTask

#: Sets of examples for evaluation: Omniglot classes that choose the temperature, Omniglot classes for the test, and two
#: other data sets.
VALIDATION, OMNIGLOT, MNIST, FASHION = SETS = ("validation", "omniglot", "mnist", "fashion-mnist")
#: Largest number of examples from MNIST and from Fashion-MNIST: more would use the same images as queries again.
MOST_OTHERS = 2000
#: Number of principal components of the kernel whose overlap with the labels is shown.
COMPONENTS = 50
#: Number of draws per chain over which predictions are averaged. More cost a factorisation each and hardly matter.
PREDICTED = 50
#: Number of examples whose attention is computed at a time. Larger: more memory. Smaller: slower.
CHUNK = 500

Asked = Mapping[str, tuple[np.ndarray, np.ndarray]]


def asked_of(task: OneShotTask) -> Asked:
    """Return name of a set -> (inputs, labels), for all SETS."""
    count = min(len(task.test_labels), MOST_OTHERS)
    return {
        VALIDATION: (task.validation_inputs, task.validation_labels),
        OMNIGLOT: (task.test_inputs, task.test_labels),
        MNIST: task.out_of_distribution(MNIST, count),
        FASHION: task.out_of_distribution(FASHION, count),
    }


def over_widths(problem: asx.PathPosterior, widths: Sequence[float]) -> xr.Dataset:
    """Solve the theory at every width, at the temperature of the problem.

    Returns
    -------
    Dataset (width, ...)
        ``order_parameter``, ``alignment`` (the labels' overlaps with the kernel's components), ``converged``, and
        ``rows`` (width, path, feature): the mean prediction at x is sum_pi rows^pi . xi^pi(x).
    """
    grid = [float(width) for width in widths]
    theory = asx.solve(problem, width=grid, progress=False)
    at = [_predictor(problem, U) for U in theory.order_parameter.values]
    count = min(COMPONENTS, len(problem.labels))
    return xr.Dataset(
        {
            "order_parameter": (("width", "path", "path_other"), theory.order_parameter.values),
            "converged": ("width", theory.ds["converged"].values),
            "alignment": (("width", "component"), np.stack([one.alignment(count) for one in at])),
            "rows": (("width", "path", "feature"), np.stack([one.path_weights for one in at])),
        },
        coords={"width": grid},
    )


def at_temperatures(problem: asx.PathPosterior, temperatures: Sequence[float], widths: Sequence[float]) -> xr.Dataset:
    """Solve the theory at every width and temperature, (temperature, width, ...), with one temperature per core."""
    problems = [problem.at({"temperature": float(T)}) for T in temperatures]
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore", RuntimeWarning)  # for widths below the number of paths
        warnings.simplefilter("ignore", asx.ConvergenceWarning)
        tables = in_threads(lambda one: over_widths(one, widths), problems)
    joined = xr.concat(tables, dim="temperature").assign_coords(temperature=[float(T) for T in temperatures])
    assert isinstance(joined, xr.Dataset)
    return joined


def answered(network: AttentionPaths, table: xr.Dataset, asked: Asked) -> xr.Dataset:
    """Return ``table`` with ``right_SET`` (..., example_SET) in place of its rows: 1 for the label's sign, else 0."""
    right = {f"right_{name}": _right(network, table["rows"], name, *given) for name, given in asked.items()}
    return table.drop_vars("rows").assign(right)


def _right(
    network: AttentionPaths, rows: xr.DataArray, name: str, inputs: np.ndarray, labels: np.ndarray
) -> xr.DataArray:
    flat = rows.values.reshape(-1, rows.shape[-2] * rows.shape[-1])
    parts = [network.attended(chunk).reshape(-1, flat.shape[1]) @ flat.T for chunk in in_chunks(inputs, CHUNK)]
    mean = np.concatenate(parts).T.reshape(*rows.shape[:-2], len(labels))
    return xr.DataArray((np.sign(mean) == np.sign(labels)).astype(np.int8), dims=[*rows.dims[:-2], f"example_{name}"])


def _predictor(problem: asx.PathPosterior, U: np.ndarray) -> Predictor:
    return Predictor(problem.attended, problem.labels, U, problem.temperature, problem.prior_variances[0])


def sampled(problem: asx.PathPosterior, runs: asx.Result) -> xr.Dataset:
    """Return the results of all chains ``runs`` of exact sampling at one width, combined.

    Returns
    -------
    Dataset
        ``order_parameter`` and its Monte Carlo error, ``rows`` (path, feature) of the mean predictor, ``r_hat``,
        ``effective_samples`` (the sum over chains of the smallest number of any entry), ``divergences``,
        ``leapfrog_steps``, ``cpu_seconds``.
    """
    chains = runs.ds.sizes["seed"]
    found = {name: runs.ds[name].mean("seed") for name in ("order_parameter", "r_hat", "leapfrog_steps")}
    # Chains are independent: squared errors of the mean add up, and so do effective samples.
    found["order_parameter_err"] = (runs.ds["order_parameter_err"] ** 2).sum("seed") ** 0.5 / chains
    found |= {name: runs.ds[name].sum("seed") for name in ("effective_samples", "divergences", "cpu_seconds")}
    draws = runs.ds["order_parameter_draws"].transpose("seed", "draw", "path", "path_other").values
    few = draws[:, :: max(1, draws.shape[1] // PREDICTED)]
    with one_blas_thread():
        rows = in_threads(lambda U: _predictor(problem, U).path_weights, list(few.reshape(-1, *few.shape[-2:])))
    # The mean predictor is linear in the rows.
    found["rows"] = xr.DataArray(np.mean(rows, axis=0), dims=("path", "feature"))
    return xr.Dataset({name: values.drop_attrs() for name, values in found.items()}).reset_coords(drop=True)


class Chosen(NamedTuple):
    """Numbers of several draws of the training examples, each at the temperatures that it chose for every width.

    Attributes
    ----------
    temperature, on_test : DataArray (draw, width)
        Temperatures chosen on validation examples, and temperatures that the test examples would have chosen.
    right : dict of str to DataArray (draw, width, example)
        Correct answers by set, at the temperature chosen on validation examples.
    right_on_test : DataArray (draw, width, example)
        Correct answers on the test set, at the temperature chosen on the test set itself.
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
    """Return the numbers at the temperatures chosen for every width and draw; ``draws`` has one table per draw."""
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
    """Return the tables of all draws joined along the dimension ``draw``."""
    joined = xr.concat([draw.drop_attrs() for draw in draws], dim="draw")
    assert isinstance(joined, xr.Dataset)
    return joined


def right_in(numbers: xr.Dataset, name: str) -> xr.DataArray:
    """Return the correct answers in the set ``name``, (..., example), one or zero."""
    return numbers[f"right_{name}"].rename({f"example_{name}": "example"})


def best_temperature(right: xr.DataArray) -> xr.DataArray:
    """Return the temperature with most correct answers ``right`` (..., temperature, ..., example).

    If several have as many, it is the middle one, of two the lower.
    """
    score = right.mean("example")
    best = score == score.max("temperature")
    middle = best & (best.cumsum("temperature") == (best.sum("temperature") + 1) // 2)
    return right.temperature[middle.argmax("temperature")].drop_vars("temperature")


class Share(NamedTuple):
    """A percentage with its standard error."""

    value: np.ndarray
    error: np.ndarray


def accuracy(right: xr.DataArray) -> Share:
    """Return the mean of ``right`` over its dimensions draw and example, in percent, (...), with its error.

    ``right`` are correct answers, 0 or 1, or differences of two such arrays.

    The variance of the mean has two parts: over draws of the training examples, if there are several, and over the
    evaluated examples, which all draws share.
    """
    values = 100 * right.astype(float)
    variance = values.mean("draw").var("example", ddof=1) / values.sizes["example"]
    if (draws := values.sizes["draw"]) > 1:
        variance = variance + values.mean("example").var("draw", ddof=1) / draws
    return Share(values.mean(("draw", "example")).values, (variance**0.5).values)


def gain(first: xr.DataArray, second: xr.DataArray) -> tuple[float, float]:
    """Return the gain in accuracy of ``first`` over ``second``, in percentage points, and its error.

    Both are correct answers (draw, example), 0 or 1.
    """
    share = accuracy(first.astype(float) - second.astype(float))
    return float(share.value), float(share.error)
