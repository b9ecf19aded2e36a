"""Sweeps that change the number of index rows, and what rows are called in messages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from asymptotix import SGD, BayesOptimal, DeepAttention, MultiIndex, Result, compare, simulate
from asymptotix.core.problem import Algorithm, Outcome, Problem
from asymptotix.sequence_index.algorithms.gamp_batch import GampRecord
from asymptotix.sequence_index.channels.choose import channel_of

DIM = 20


@dataclass(frozen=True)
class Unlearned(Algorithm):
    """Reports what a random estimate has: an overlap rows/D with every row of the teacher."""

    rows: tuple[tuple[int, float], ...]  # number of indices -> rows of the estimate that see a row of the teacher

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        return {**problem.dimensions(), "cosine": ("index",)}

    def run_points(self, problem: Any, points: Any, *, dim: Any, seeds: Any, progress: Any) -> Iterator:
        P = problem.theory.channel.indices
        values = {"overlap": dict(self.rows)[P] / dim * np.eye(P), "cosine": np.full(P, dim**-0.5)}
        yield from ((i, j, Outcome(values)) for i in range(len(points)) for j in range(len(seeds)))


def nothing_learned(problem: Problem, field: str, values: list[float], indices: int) -> Result:
    """A theory that says so, at alpha = 1."""
    zero = (field, "index", "index_other"), np.zeros((len(values), indices, indices))
    ds = xr.Dataset({"overlap": zero, "converged": (field, [True] * len(values))}, {field: values, "alpha": 1.0})
    return Result(ds, problem=problem, kind="theory", settings={"start": "uninformed", "tolerance": 1e-3})


@pytest.mark.parametrize(
    ("model", "field", "values", "indices", "rows"),
    [
        (DeepAttention(layers=2, tokens=2), "layers", [1, 2], 2, ((1, 1), (2, 1))),
        (DeepAttention(layers=1, tokens=4), "rank", [1, 2], 2, ((1, 1), (2, 2))),
        # Each of two heads has a row of its own for each of two blocks, and rows of other blocks see nothing of it.
        (DeepAttention(layers=1, tokens=2), "heads", [1, 2], 4, ((1, 1), (4, 2))),
    ],
)
def test_bias_of_an_unlearned_index_is_that_of_its_own_model(model, field, values, indices, rows):
    problem = BayesOptimal(model)
    runs = simulate(problem, Unlearned(rows), alpha=1.0, dim=DIM, seeds=2, progress=False, **{field: values})
    found = compare(nothing_learned(problem, field, values, indices), runs).ds
    there = found.overlap_runs.values > 0
    assert there.reshape(2, -1).sum(1).tolist() == [rows[0][0] ** 2, rows[1][0] ** 2]
    assert abs(found.overlap_mean.values[there]).max() < 1e-15  # rounding of numbers of order 1/D


def test_directions_of_a_link_are_counted_once_in_a_sweep_of_its_noise(monkeypatch):
    """The bias of y = z_1 + z_2 is 1/D, not 2/D: its estimates span one direction."""
    problem = BayesOptimal(MultiIndex(lambda z: z[0] + z[1], indices=2))
    counted = []
    kind = type(problem.theory.state_evolution)

    def visible(self: Any) -> np.ndarray:
        counted.append(self)
        return np.ones((2, 1)) / np.sqrt(2)

    monkeypatch.setattr(kind, "visible", property(visible))
    noise = [0.1, 0.2, 0.3]
    runs = simulate(problem, Unlearned(((2, 1),)), alpha=1.0, dim=DIM, seeds=2, noise=noise, progress=False)
    found = compare(nothing_learned(problem, "noise", noise, 2), runs).ds
    assert abs(found.overlap_mean).max() < 1e-15  # rounding of numbers of order 1/D
    assert len(counted) == 1


def test_gradient_descent_on_several_depths(monkeypatch):
    monkeypatch.setattr(SGD, "run_points", Unlearned(((1, 1), (2, 1))).run_points)
    problem = BayesOptimal(DeepAttention(layers=1, tokens=2))
    runs = simulate(problem, SGD(), alpha=1.0, layers=[1, 2], dim=DIM, seeds=2, progress=False)
    assert runs.index_label.values.tolist() == ["layer 1", "layer 2"]
    assert runs.cosine.dims == ("layers", "seed", "index")
    assert runs.cosine.notnull().sum("index").values.tolist() == [[1, 1], [2, 2]]


def test_gradient_descent_is_asked_about_what_it_runs_on(monkeypatch):
    """The problem has side information, the runs have none."""
    monkeypatch.setattr(SGD, "run_points", Unlearned(((1, 1),)).run_points)
    problem, options = BayesOptimal(DeepAttention(1, 2), side_information=0.1), {"alpha": 1.0, "dim": DIM, "seeds": 1}
    assert simulate(problem, SGD(), side_information=0.0, progress=False, **options).ok
    for refused in ({}, {"side_information": [0.0, 0.2]}):
        with pytest.raises(ValueError, match="SGD makes no use of side information"):
            simulate(problem, SGD(), **refused, progress=False, **options)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (DeepAttention(layers=2, tokens=2), "layer 2"),
        (MultiIndex(lambda z: z[0] + z[1], indices=2), "index 2"),
    ],
)
def test_spectral_start_is_named_as_the_result_names_it(model, name):
    record = GampRecord(channel_of(model), np.zeros((1, 2, DIM)), BayesOptimal(model).index_labels())
    record.gap = np.full((1, 2), 0.01)
    start = SimpleNamespace(converged=True)
    stages: Any = [SimpleNamespace(entering=np.array([False, True]), growth=2.0, start=start)]
    words = record._doubts(0, stages, contradicted=False)
    assert words == f"; the spectral start of {name} is not detached from the bulk (gap 1.0%)"
    start.converged = False
    record.gap[:], record.residual[:] = 0.5, 0.02
    found, theory = record._doubts(0, stages, contradicted=False).split("; ")[1:]
    assert found == f"the spectral start of {name} was found to a residual of 2.0% only"
    assert theory == f"the spectral start of {name} rests on a theory that did not converge"
