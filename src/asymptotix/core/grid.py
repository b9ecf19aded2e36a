"""Turn controls, given as numbers and 1-D grids, into the table of points to compute."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..numerics import checks
from .dataset.rows import Rows, common_rows
from .dataset.selection import positions as positions
from .problem import Problem
from .specification import numeric_fields, with_fields

#: Largest number of points of a grid, and of seeds. Larger: a mistake would fill the memory.
MOST_POINTS = 10**6


@dataclass(frozen=True)
class Block:
    """The points that share one problem, which the theory gets in one call.

    ``points[i]`` maps a control to its value; ``positions[i]`` is its position in the flattened (C order) grid.
    """

    problem: Problem
    positions: tuple[int, ...]
    points: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class Grid:
    """All combinations of controls and swept fields: name, in the user's order -> number (0-d) or grid (1-D)."""

    values: Mapping[str, np.ndarray]

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, values in self.values.items() if values.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(self.values[name]) for name in self.dims)

    @property
    def lengths(self) -> dict[str, int]:
        return dict(zip(self.dims, self.shape, strict=True))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    def coordinates(self) -> dict[str, object]:
        return {name: (name, values) if values.ndim else values for name, values in self.values.items()}

    def blocks(self, problem: Problem) -> list[Block]:
        """Return the points in groups of equal problem: ``problem`` with the swept fields set. A bad value raises."""
        groups: dict[tuple, tuple[list[int], list[dict[str, float]]]] = {}
        fields = [name for name in self.values if name not in problem.controls]
        for position, combination in enumerate(itertools.product(*map(np.atleast_1d, self.values.values()))):
            point = {name: value.item() for name, value in zip(self.values, combination, strict=True)}
            positions, points = groups.setdefault(tuple(point[name] for name in fields), ([], []))
            positions.append(position)
            points.append({name: point[name] for name in self.values if name in problem.controls})
        return [
            Block(
                with_fields(problem, **dict(zip(fields, values, strict=True))),
                tuple(positions),
                tuple(points),
            )
            for values, (positions, points) in groups.items()
        ]


def index_rows(grid: Grid, blocks: Sequence[Block], *, copies: int = 1) -> Rows:
    """Return the labels of ``index`` at every point of a table, where each point occurs ``copies`` times in a row."""
    labels: dict[int, tuple[str, ...]] = {}
    for block in blocks:
        labels |= dict.fromkeys(block.positions, tuple(block.problem.index_labels()))
    swept = [name for name in grid.dims if name not in blocks[0].problem.controls]
    return common_rows([labels[at] for at in range(grid.size) for _ in range(copies)], swept)


def expand(problem: Problem, given: Mapping[str, ArrayLike], *, own: Sequence[str]) -> Grid:
    """Check the controls and fields that a user gave to a verb, and return them as a grid.

    Parameters
    ----------
    problem
        The problem. Its controls named in ``own`` are required, its numeric fields are optional.
    given
        Name -> number or 1-D sequence.
    own
        The problem's own controls that this verb needs; none for thresholds.

    Raises
    ------
    TypeError
        If a required name is missing or a name is unknown.
    ValueError
        If values are invalid or repeated, or there are too many points.
    """
    legal = [*own, *(name for name in numeric_fields(problem) if name not in problem.controls)]
    for name in given:
        if name not in legal:
            close = difflib.get_close_matches(name, legal, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise TypeError(
                f"{name!r} is no control of {type(problem).__name__}{hint}; accepted are {', '.join(legal) or 'none'}"
            )
    if taken := [name for name in given if own and name in problem.named_like_observables]:
        raise ValueError(
            f"{taken[0]} cannot be swept, being the name of an observable of {type(problem).__name__} too: set it in "
            "the description, one after the other"
        )
    if missing := [name for name in own if name not in given]:
        raise TypeError(f"{type(problem).__name__} needs {', '.join(missing)}, for example {missing[0]}=1.0")
    grid = Grid({name: _control(problem, name, values, own=name in own) for name, values in given.items()})
    if grid.size > MOST_POINTS:
        raise ValueError(f"the grids of {', '.join(grid.dims)} must have at most {MOST_POINTS} points, got {grid.size}")
    return grid


def _control(problem: Problem, name: str, given: ArrayLike, *, own: bool) -> np.ndarray:
    values = checks.real_array(name, given)
    if values.ndim > 1 or values.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty 1-D sequence, got shape {values.shape}")
    if len(np.unique(values)) < values.size:
        raise ValueError(f"{name} must not repeat a value, got {np.array2string(values, threshold=8)}")
    if not own:  # the description checks its own fields when it is built
        return values
    return np.asarray(problem.check_control(name, np.atleast_1d(values)), dtype=float).reshape(values.shape)
