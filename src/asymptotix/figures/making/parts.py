"""The results of which a figure is made, stored in its folder: stored results are reused, missing ones computed."""

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
    """An object that writes itself to a file, completely or not at all."""

    def save(self, path: Path, /) -> object: ...


Shared = TypeVar("Shared", bound=Kept)


class Parts:
    """The results of which a figure is made, by name; with a folder, each is a netCDF file in it.

    :meth:`solve`, :meth:`simulate` and :meth:`thresholds` work as in asymptotix, but take the name of the result as
    first argument. The file of an interrupted call is resumed. A damaged file, or one of another computation, is
    reported and recomputed. There are no convergence warnings: the figure's record states how points ended.

    Parameters
    ----------
    folder : Path or None
        The figure's own folder.
    say : callable
        Receives a line of text for every result that is started.
    progress : bool or None
        Passed to the three methods above.
    shared : Path, optional
        Folder of parts that several figures use; by default the figure's own folder.

    Attributes
    ----------
    results, datasets : dict
        The results and datasets requested so far, by name.
    files : dict of str to str
        Name of a result or dataset -> its file, relative to the figure's own folder.
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
        """Compare like :func:`asymptotix.compare`, but without convergence warnings: the figure's record has them."""
        with _quiet():
            return compare(theory, experiment, **options)

    def dataset(
        self, name: str, settings: Mapping[str, object], make: Callable[[], xr.Dataset], *, shared: bool = False
    ) -> xr.Dataset:
        """Return the dataset ``name``: from its file if that was made with equal ``settings``, else from ``make()``.

        A ``shared`` dataset is in the folder that several figures use.
        """
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
        """Return a `Parts` for the intermediate results from which the dataset ``name`` is computed.

        Their files exist until the dataset is complete, so that an interrupted computation can resume.
        """
        path = self._path(name, shared=shared)
        return Parts(None if path is None else _unfinished(path), self._say, self.progress)

    def shared(
        self,
        file: str,
        make: Callable[[Path | None], Shared],
        load: Callable[[Path], Shared],
        differs: Callable[[Shared], str],
    ) -> Shared:
        """Return an object that several figures share, such as a trained network: from its file, else made now.

        Parameters
        ----------
        file : str
            Name of the object's file in the shared folder.
        make : callable
            Makes the object. Receives the path of a checkpoint from which a later call resumes; None without a folder.
        load : callable
            Reads the file; raises ValueError if it is damaged.
        differs : callable
            Returns how the loaded object differs from the requested one; "" if it does not.
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
        if path is not None and not path.exists():  # the disk was full for a while
            result.save(path)
        self.results[name] = result
        return result

    def _path(self, name: str, kind: str = "nc", *, shared: bool = False) -> Path | None:
        """Return the path of the file ``name``.``kind`` and note it in ``files``; None without a folder."""
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
    """Return the path (without extension) for intermediate results of the unfinished file ``path``."""
    return path.with_name(f"{path.stem}_unfinished")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
