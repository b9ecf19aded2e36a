"""The results that a figure is made of, kept in its folder: what is there is taken, what is not is computed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

from ...core.compare import Comparison, compare
from ...core.dataset.files import opened, sealed
from ...core.dataset.whole_file import write_whole
from ...core.problem import Algorithm, Problem
from ...core.result import ConvergenceWarning, Result, load
from ...core.verbs import simulate, solve, thresholds

Say = Callable[[str], None]


class Parts:
    """Results by name, each a netCDF file of the folder if there is one.

    The verbs are as usual but for a name at first. A file of an interrupted call is gone on with; one that is damaged,
    or of something else, is said and computed anew. How points ended is for the figure's record, not a warning.

    Parameters
    ----------
    folder : Path or None
    say : callable
        Gets a line for every part that is begun.
    progress : bool or None
        Of the verbs.
    """

    def __init__(self, folder: Path | None, say: Say, progress: bool | None = None) -> None:
        self._folder, self._say, self._progress = folder, say, progress
        self.results: dict[str, Result] = {}
        self.datasets: dict[str, xr.Dataset] = {}

    def solve(self, name: str, problem: Problem, **options: Any) -> Result:
        return self._result(name, solve, problem, **options)

    def simulate(self, name: str, problem: Problem, algorithm: Algorithm, **options: Any) -> Result:
        return self._result(name, simulate, problem, algorithm, **options)

    def thresholds(self, name: str, problem: Problem, **options: Any) -> Result:
        return self._result(name, thresholds, problem, **options)

    def compare(self, theory: Result, experiment: Result, **options: Any) -> Comparison:
        """Without the warnings of points that did not converge, which the record names."""
        with _quiet():
            return compare(theory, experiment, **options)

    def dataset(self, name: str, settings: Mapping[str, Any], make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Numbers that no verb returns; ``settings`` is what they depend on."""
        path, told = self._path(name), json.dumps(settings, sort_keys=True, default=str)
        found = self._earlier_dataset(path, told)
        if found is None:
            self._say(f"{name} ...")
            with _quiet():
                found = make().assign_attrs(settings=told)
            if path is not None:
                write_whole(path, sealed(found))
        self.datasets[name] = found
        return found

    def _result(self, name: str, verb: Callable[..., Result], problem: Problem, *args: Any, **options: Any) -> Result:
        path = self._path(name)
        earlier = self._earlier_result(path)
        options = {"progress": self._progress, **options}
        if path is not None:
            options["checkpoint"] = path
        self._say(f"{name} ...")
        with _quiet():
            try:
                result = verb(problem, *args, resume=earlier, **options)
            except ValueError as error:
                if earlier is None:
                    raise
                self._say(f"{path} is of something else and computed anew: {error}")
                result = verb(problem, *args, **options)
        if not result.finished:
            raise KeyboardInterrupt(f"{name} is not finished")
        if path is not None and not path.exists():  # a disk that was full for a while
            result.save(path)
        self.results[name] = result
        return result

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.nc"

    def _earlier_result(self, path: Path | None) -> Result | None:
        if path is None or not path.exists():
            return None
        try:
            return load(path)
        except ValueError as error:
            self._say(f"computed anew: {error}")
            path.unlink()
            return None

    def _earlier_dataset(self, path: Path | None, settings: str) -> xr.Dataset | None:
        if path is None or not path.exists():
            return None
        try:
            found = opened(path)
        except ValueError as error:
            self._say(f"computed anew: {error}")
            return None
        if found.attrs.get("settings") != settings:
            self._say(f"{path} is of something else and computed anew")
            return None
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
