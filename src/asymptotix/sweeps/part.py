"""Parts (a verb such as ``solve`` on one problem over a grid) and chunks of a sweep, for any process to compute."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._version import __version__
from ..core.driver.run import Work
from ..core.driver.works import experiment_work, theory_work, threshold_work
from ..core.problem import Algorithm, Problem
from ..core.result import Result
from ..core.specification import describe, encode, with_fields
from ..core.verbs import simulate, solve, thresholds


def _defaults(verb: Callable[..., Result], *names: str) -> dict[str, Any]:
    return {name: inspect.signature(verb).parameters[name].default for name in names}


#: Verb -> names of its arguments that a sweep accepts as options, with their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "solve": _defaults(solve, "start", "tolerance", "fixed"),
    "simulate": {},
    "thresholds": _defaults(thresholds, "which", "tolerance"),
}
#: Number of characters in a chunk's name: half of a SHA-256, so that no two chunks share a name.
NAME_LENGTH = 32
#: Largest number of problems of a grid that are all built before anything is written. For more problems only the
#: corners of the grid are built, because each problem takes 0.2 seconds.
MOST_PROBLEMS_CHECKED = 64


@dataclass(frozen=True, eq=False)
class SweepPart:
    """A part of a sweep: one verb, such as ``solve``, on one problem over a grid.

    Attributes
    ----------
    verb : str
        "solve", "simulate" or "thresholds".
    problem : Problem
    grid : dict of str to number or list
        Controls and fields of the problem with their values; a list becomes a dimension of the result.
    algorithm, dim, seeds
        Algorithm, system sizes and seeds of an experiment; ``dim`` is [None] where the problem fixes the size.
    options : dict
        Options of the verb.
    one_size : bool
        Whether ``dim`` was given as a number, so that it is no dimension of the result.
    """

    verb: str
    problem: Problem
    grid: Mapping[str, Any]
    algorithm: Algorithm | None = None
    dim: Sequence[int | None] = (None,)
    seeds: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    one_size: bool = False

    def work(self) -> Work:
        """Return the :class:`Work` of the verb on the whole grid, with checked arguments."""
        told = {**OPTIONS[self.verb], **self.options}
        if self.verb == "solve":
            return theory_work(self.problem, controls=self.grid, **told)
        if self.verb == "thresholds":
            return threshold_work(self.problem, fields=self.grid, **told)
        assert self.algorithm is not None
        sizes = list(self.dim)
        dim: Any = None if sizes == [None] else sizes[0] if self.one_size else sizes
        return experiment_work(self.problem, self.algorithm, seeds=list(self.seeds), dim=dim, controls=self.grid)

    @cached_property
    def fields(self) -> list[str]:
        """Names in the grid that are fields of the problem, not controls."""
        return [name for name in self.grid if name not in self.problem.controls]

    @cached_property
    def along(self) -> str | None:
        """Name of the grid in which a chunk's points differ; None for an empty grid.

        This is the last control (theory continues along it), or the last field if there is no control. A name with a
        list of values comes before one with a number.
        """
        own = [name for name in self.grid if name in self.problem.controls] or list(self.grid)
        lists = [name for name in own if np.ndim(self.grid[name])]
        return (lists or own or [None])[-1]

    @property
    def scalars(self) -> list[str]:
        """Names of the grid, and "dim", that were given as a number and become no dimension of the result."""
        return [name for name, values in self.grid.items() if not np.ndim(values)] + ["dim"] * self.one_size

    def values_of(self, name: str) -> list[float]:
        return np.atleast_1d(self.grid[name]).tolist()

    def lines(self) -> Iterator[dict[str, float]]:
        """Yield, as name -> value, every combination of grid values of all names except ``along``."""
        others = [name for name in self.grid if name != self.along]
        for values in itertools.product(*map(self.values_of, others)):
            yield dict(zip(others, values, strict=True))

    def at(self, fixed: Mapping[str, float]) -> Problem:
        """Return the problem with the fields in ``fixed`` set; controls there are ignored. The last one is cached."""
        fields = {name: value for name, value in fixed.items() if name in self.fields}
        if self._last.get("fields") != fields:
            self._last.update(fields=fields, problem=with_fields(self.problem, **fields))
        return self._last["problem"]

    @cached_property
    def _last(self) -> dict[str, Any]:
        return {}

    @property
    def points(self) -> int:
        """Number of points of the grid."""
        return math.prod(np.size(values) for values in self.grid.values())

    def corners(self) -> SweepPart:
        """Return this part; with over MOST_PROBLEMS_CHECKED problems, one with the end values of every field only."""
        ends = {name: values if np.ndim(values) == 0 else [values[0], values[-1]] for name, values in self.grid.items()}
        few = math.prod(np.size(self.grid[name]) for name in self.fields) <= MOST_PROBLEMS_CHECKED
        return self if few else replace(self, grid={**self.grid, **{name: ends[name] for name in self.fields}})

    def labels(self, fixed: Mapping[str, float], value: float | None) -> tuple[str, ...]:
        """Return the labels of the result's dimension ``index`` at a point; all points of a chunk have the same labels.

        The point has the controls and fields ``fixed``, and ``value`` for the name ``along``.
        """
        more = {} if self.along is None or value is None else {self.along: value}
        fields = {name: value for name, value in {**fixed, **more}.items() if name in self.fields}
        key = tuple(sorted(fields.items()))
        if key not in self._labels:
            self._labels[key] = tuple(self.at(fields).index_labels())
        return self._labels[key]

    @cached_property
    def _labels(self) -> dict[tuple, tuple[str, ...]]:
        """Cache: fields of a problem -> labels of the dimension ``index``, which controls do not change."""
        return {}

    def has(self, one: tuple) -> bool:
        """Return whether the grid of this part contains the point or run with the key ``one``, see :func:`unit`."""
        *known, dim, seed = one
        values, sizes, seeds = self._members
        return dim in sizes and seed in seeds and all(value in values.get(name, ()) for name, value in known)

    @cached_property
    def _members(self) -> tuple[dict[str, set[float]], set[int | None], set[int | None]]:
        values = {name: set(map(float, self.values_of(name))) for name in self.grid}
        return values, set(self.dim), set(self.seeds) or {None}

    def described(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a description of the part for JSON, and name -> array for the arrays in the description.

        Values of the grid, sizes and seeds are left out, because a later call of the same sweep may add some.
        """
        arrays: dict[str, np.ndarray] = {}
        algorithm = None if self.algorithm is None else describe(self.algorithm, arrays=arrays)
        return {
            "verb": self.verb,
            "problem": describe(self.problem, arrays=arrays),
            "algorithm": algorithm,
            "options": encode(dict(self.options), path="options", arrays=arrays),
            "over": list(self.grid),
            "asymptotix": __version__,
        }, arrays


@dataclass(frozen=True)
class SweepChunk:
    """Points of a part that are computed in one call and stored in one file.

    Attributes
    ----------
    part : str
        Name of the part.
    fixed : dict of str to float
        Controls and fields that all points of the chunk share.
    values : tuple of float
        Values of the name in which the points differ, see :meth:`along`; empty where the part has no grid.
    dim : int or None
    seeds : tuple of int
    name : str
        Hash of everything that the chunk's numbers depend on.
    """

    part: str
    fixed: Mapping[str, float]
    values: tuple[float, ...]
    dim: int | None = None
    seeds: tuple[int, ...] = ()
    name: str = ""

    def along(self, names: Iterable[str]) -> str | None:
        """Return the name in which the chunk's points differ: the first of its part's grid ``names`` not in ``fixed``.

        The part's own ``along`` may differ: a name that was a number when the chunk was cut may be a list now.
        """
        return next((name for name in names if name not in self.fixed), None)

    def units(self, names: Iterable[str]) -> list[tuple]:
        """Return the keys (:func:`unit`) of the chunk's points or runs; ``names`` are the names in its part's grid."""
        values, along = self.values or (None,), self.along(names)
        return [unit(self.fixed, along, v, self.dim, s) for v in values for s in self.seeds or (None,)]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "part": self.part, "fixed": dict(self.fixed), "values": list(self.values),
            "dim": self.dim, "seeds": list(self.seeds),
        }  # fmt: skip

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> SweepChunk:
        plain = {name: line[name] for name in ("part", "fixed", "dim", "name")}
        return cls(**plain, values=tuple(line["values"]), seeds=tuple(line["seeds"]))

    def compute(self, part: SweepPart) -> Result:
        """Compute the chunk, a chunk of ``part``, and return the result of the verb, such as :func:`solve`."""
        problem = part.at(self.fixed)
        grid: dict[str, Any] = {name: value for name, value in self.fixed.items() if name not in part.fields}
        if (along := self.along(part.grid)) is not None:
            grid[along] = list(self.values)
        if part.verb == "solve":
            return solve(problem, progress=False, **part.options, **grid)
        if part.verb == "thresholds":
            return thresholds(problem, progress=False, **part.options, **grid)
        assert part.algorithm is not None
        return simulate(problem, part.algorithm, seeds=list(self.seeds), dim=self.dim, progress=False, **grid)


def unit(
    fixed: Mapping[str, float], along: str | None, value: float | None, dim: int | None, seed: int | None
) -> tuple:
    """Return the key of a point or run: sorted pairs (name, value) of ``fixed`` and ``along``, size, seed."""
    known = {**fixed, **({} if along is None else {along: value})}
    return (*sorted((name, float(v)) for name, v in known.items() if v is not None), dim, seed)


def hashed(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


class Namer:
    """Maker of names for chunks of a part: hashes of all that the chunks' numbers depend on. Arrays are hashed once."""

    def __init__(self, part: SweepPart) -> None:
        told, arrays = part.described()
        self._part = part
        self._common = {name: told[name] for name in ("verb", "algorithm", "options", "asymptotix")}
        self._common["arrays"] = {name: hashed(array) for name, array in arrays.items()}
        self._problems: dict[tuple, object] = {}

    def named(self, chunk: SweepChunk) -> SweepChunk:
        fields = tuple((name, chunk.fixed[name]) for name in self._part.fields if name in chunk.fixed)
        if fields not in self._problems:
            self._problems[fields] = describe(self._part.at(chunk.fixed), arrays={})
        numbers = {"fixed": dict(chunk.fixed), "values": chunk.values, "dim": chunk.dim, "seeds": chunk.seeds}
        whole = {**self._common, "problem": self._problems[fields], "along": self._part.along, **numbers}
        digest = hashlib.sha256(json.dumps(whole, sort_keys=True, default=repr).encode()).hexdigest()
        return replace(chunk, name=digest[:NAME_LENGTH])
