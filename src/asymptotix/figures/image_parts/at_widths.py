"""Bayesian value weights on trained heads: right answers, order parameter and alignment at every width and temperature.

The temperature is chosen width by width on examples of the validation classes. The paper chose it on its test examples:
both choices are made here, and their difference is a number.

Tiberi et al., arXiv:2405.15926, section 4.2.1 and appendix H.2.1.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr

import asymptotix as asx

if TYPE_CHECKING:
    from ...attention_paths.network.path_network import AttentionPaths
    from ...tasks.one_shot import OneShotTask

#: What is asked after learning: classes of Omniglot that choose the temperature, others of it, and two other data sets.
VALIDATION, OMNIGLOT, MNIST, FASHION = SETS = ("validation", "omniglot", "mnist", "fashion-mnist")
#: Components of the kernel whose overlap with the labels is shown.
COMPONENTS = 50
#: Draws of a chain that predictions are averaged over; each takes a factorisation, and their mean changes little.
PREDICTED = 50


def examples_of(task: OneShotTask, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Inputs and labels of every set; ``count`` of each of the other data sets."""
    return {
        VALIDATION: (task.validation_inputs, task.validation_labels),
        OMNIGLOT: (task.test_inputs, task.test_labels),
        MNIST: task.out_of_distribution(MNIST, count),
        FASHION: task.out_of_distribution(FASHION, count),
    }


def over_widths(
    network: AttentionPaths, task: OneShotTask, *, widths: Sequence[float], temperatures: Sequence[float]
) -> xr.Dataset:
    """Theory at every width, the Gaussian-process limit among them, and every temperature.

    Returns
    -------
    Dataset (temperature, width, ...)
        ``right_SET`` (temperature, width, example): one where the sign of the mean is the label's. ``order_parameter``,
        ``alignment`` and ``converged``.
    """
    problem = asx.PathPosterior(network, task.inputs, task.labels)
    with warnings.catch_warnings():  # that widths are below the number of paths is what the figure looks at
        warnings.simplefilter("ignore", RuntimeWarning)
        theory = asx.solve(
            problem, width=[*map(float, widths), np.inf], temperature=list(map(float, temperatures)), progress=False
        )
    found = {f"right_{name}": _right(theory, *given) for name, given in examples_of(task, _count(task)).items()}
    own = theory.ds[["order_parameter", "converged"]]
    return xr.Dataset({**found, **own, "alignment": theory.alignment(COMPONENTS)}).reset_coords(drop=True)


def sampled(
    network: AttentionPaths,
    task: OneShotTask,
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
        ``right_SET`` (example,) of the mean over all chains, ``order_parameter`` and its Monte Carlo error, ``r_hat``,
        ``effective_samples`` (the smallest over entries, of all chains together), ``divergences``,
        ``leapfrog_steps``, ``cpu_seconds``.
    """
    problem = asx.PathPosterior(network, task.inputs, task.labels, temperature=temperature)
    sampler = asx.NUTS(warmup=warmup, draws=draws)
    runs = asx.simulate(problem, sampler, width=float(width), seeds=chains, progress=progress)
    own = runs.ds.mean("seed")[["order_parameter", "r_hat", "leapfrog_steps"]]
    # Chains are independent: the error of their mean, and their effective samples together.
    own["order_parameter_err"] = np.sqrt((runs.ds.order_parameter_err**2).sum("seed")) / chains
    for name in ("effective_samples", "divergences", "cpu_seconds"):
        own[name] = runs.ds[name].sum("seed")
    few = runs.isel(draw=slice(None, None, max(1, draws // PREDICTED)))
    for name, given in examples_of(task, _count(task)).items():
        mean, _ = few.predict(given[0])
        own[f"right_{name}"] = _agrees(mean.mean("seed"), given[1])
    return own.reset_coords(drop=True)


def _count(task: OneShotTask) -> int:
    return len(task.test_labels)


def _right(theory: asx.Result, inputs: np.ndarray, labels: np.ndarray) -> xr.DataArray:
    return _agrees(theory.predict(inputs)[0], labels)


def _agrees(mean: xr.DataArray, labels: np.ndarray) -> xr.DataArray:
    return (np.sign(mean) == xr.DataArray(np.sign(labels), dims="example")).astype(np.int8)


class Chosen(NamedTuple):
    """Numbers of several draws of the examples, at the temperature that each of them chose by width.

    Attributes
    ----------
    temperature : DataArray (draw, width)
        Chosen on validation examples; ``on_test`` is what the test examples would have chosen.
    right : dict of str to DataArray (draw, width, example)
        By set, at the chosen temperature.
    right_on_test : DataArray (draw, width, example)
        Of the test set, at the temperature chosen on itself.
    order_parameter, alignment : DataArray (draw, width, ...)
        At the chosen temperature.
    """

    temperature: xr.DataArray
    on_test: xr.DataArray
    right: dict[str, xr.DataArray]
    right_on_test: xr.DataArray
    order_parameter: xr.DataArray
    alignment: xr.DataArray


def chosen(draws: Sequence[xr.Dataset]) -> Chosen:
    """Choose the temperatures of every draw by itself."""
    joined = xr.concat([draw.drop_attrs() for draw in draws], dim="draw")
    assert isinstance(joined, xr.Dataset)
    temperature = best_temperature(joined[f"right_{VALIDATION}"])
    on_test = best_temperature(joined[f"right_{OMNIGLOT}"])

    def at(name: str) -> xr.DataArray:
        return joined[name].sel(temperature=temperature)

    return Chosen(
        temperature=temperature,
        on_test=on_test,
        right={name: at(f"right_{name}") for name in SETS},
        right_on_test=joined[f"right_{OMNIGLOT}"].sel(temperature=on_test),
        order_parameter=at("order_parameter"),
        alignment=at("alignment"),
    )


def best_temperature(right: xr.DataArray) -> xr.DataArray:
    """The temperature with most right answers; of several, the middle one, for the optimum is flat."""
    score = right.mean("example")
    best = score == score.max("temperature")
    # The middle of those that tie, the lower of two.
    rank = best.cumsum("temperature")
    middle = (best.sum("temperature") + 1) // 2
    return right.temperature[(best & (rank == middle)).argmax("temperature")].drop_vars("temperature")


class Share(NamedTuple):
    """Percent and its error."""

    value: np.ndarray
    error: np.ndarray


def accuracy(right: xr.DataArray) -> Share:
    """Mean over draws and examples in percent.

    The error is the larger of two: over draws of the task (where there are three or more), which holds everything but
    is itself uncertain, and over the test examples, as if they were independent.
    """
    per_draw = 100 * right.astype(float).mean("example")
    count = right.sizes["example"] * right.sizes["draw"]
    over_examples = 100 * np.sqrt(right.astype(float).var(("draw", "example")) / count)
    draws = right.sizes["draw"]
    over_draws = per_draw.std("draw", ddof=1) / np.sqrt(draws) if draws >= 3 else 0 * over_examples
    return Share(per_draw.mean("draw").values, np.maximum(over_draws, over_examples).values)


def gain(first: xr.DataArray, second: xr.DataArray) -> tuple[float, float]:
    """How many points more the first gets right, on the same examples, with the error of the difference."""
    share = accuracy(first.astype(float) - second.astype(float))
    return float(share.value), float(share.error)


def relearned(problem: asx.PathPosterior, temperature: float) -> asx.PathPosterior:
    """The same posterior at another temperature."""
    return replace(problem, temperature=temperature)
