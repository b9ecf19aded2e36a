"""The results that a figure is made of, kept in its folder: what is there is taken, what is not is computed."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import xarray as xr

from ...core.compare import Comparison, compare
from ...core.dataset.files import opened, sealed
from ...core.dataset.whole_file import write_whole
from ...core.problem import Algorithm, Problem
from ...core.result import ConvergenceWarning, Result, load
from ...core.verbs import simulate, solve, thresholds

Say = Callable[[str], None]


class Kept(Protocol):
    """What writes itself to a file, whole or not at all."""

    def save(self, path: Path, /) -> Any: ...


Shared = TypeVar("Shared", bound=Kept)


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
    shared : Path, optional
        Folder of what several figures are made of; by default the figure's own.

    Attributes
    ----------
    results, datasets : dict
        What was asked for, by name.
    files : dict of str to str
        The files of all that was asked for, as seen from the figure's own folder.
    progress : bool or None
        As given.
    """

    def __init__(self, folder: Path | None, say: Say, progress: bool | None = None, shared: Path | None = None) -> None:
        self._folder, self._say, self.progress = folder, say, progress
        self._shared = folder if shared is None else shared
        self.results: dict[str, Result] = {}
        self.datasets: dict[str, xr.Dataset] = {}
        self.files: dict[str, str] = {}

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

    def dataset(
        self, name: str, settings: Mapping[str, Any], make: Callable[[], xr.Dataset], *, shared: bool = False
    ) -> xr.Dataset:
        """Numbers that no verb returns; ``settings`` is what they depend on. Other figures may ask for shared ones."""
        path, told = self._path(name, shared=shared), json.dumps(settings, sort_keys=True, default=str)
        found = self._earlier_dataset(path, told)
        if found is None:
            self._say(f"{name} ...")
            with _quiet():
                found = make().assign_attrs(settings=told)
            if path is not None:
                write_whole(path, sealed(found))
                shutil.rmtree(_unfinished(path), ignore_errors=True)
        self.datasets[name] = found
        return found

    def within(self, name: str, *, shared: bool = False) -> Parts:
        """Parts of a dataset of that name, kept until it is there: one that is interrupted goes on with them."""
        path = self._path(name, shared=shared)
        return Parts(None if path is None else _unfinished(path), self._say, self.progress)

    def shared(
        self,
        file: str,
        make: Callable[[Path | None], Shared],
        load: Callable[[Path], Shared],
        differs: Callable[[Shared], str],
    ) -> Shared:
        """What several figures share, such as a trained network: whoever needs it first makes it, or it was put there.

        Parameters
        ----------
        file : str
            Its name in the shared folder.
        make : callable
            Gets the path of a file for what it has so far, to go on from when it is called again; None without a
            folder.
        load : callable
            Reads it, with a ValueError where the file is damaged.
        differs : callable
            Says in what it is not what is asked for; "" where it is.
        """
        name, _, kind = file.rpartition(".")
        path = self._path(name, kind, shared=True)
        if path is None:
            self._say(f"{file} ...")
            return make(None)
        found = self._earlier_shared(path, load, differs)
        if found is None:
            self._say(f"{file} ...")
            unfinished = _unfinished(path).with_suffix(path.suffix)
            found = make(unfinished)
            found.save(path)
            unfinished.unlink(missing_ok=True)
        return found

    def _earlier_shared(
        self, path: Path, load: Callable[[Path], Shared], differs: Callable[[Shared], str]
    ) -> Shared | None:
        if not path.exists():
            return None
        try:
            found = load(path)
        except ValueError as error:
            self._say(f"computed anew: {error}")
            return None
        if what := differs(found):
            self._say(f"{path} is of something else and computed anew: {what}")
            return None
        return found

    def _result(self, name: str, verb: Callable[..., Result], problem: Problem, *args: Any, **options: Any) -> Result:
        path = self._path(name)
        earlier = self._earlier_result(path)
        options = {"progress": self.progress, **options}
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

    def _path(self, name: str, kind: str = "nc", *, shared: bool = False) -> Path | None:
        """The file of a part, which is noted; None without a folder."""
        place = self._shared if shared else self._folder
        if self._folder is None or place is None:
            return None
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{name}.{kind}"
        self.files[name] = Path(os.path.relpath(path, self._folder)).as_posix()
        return path

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


def _unfinished(path: Path) -> Path:
    """Where something is kept while it is not whole."""
    return path.with_name(f"{path.stem}_unfinished")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
