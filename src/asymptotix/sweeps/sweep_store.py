"""The folder of a sweep: planned chunks, their results, failures, and claims of the processes at work.

::

    STORE/sweep.json             format and version
    STORE/parts/NAME.json, .npz  a verb, a problem and its options
    STORE/parts/NAME.order       values of its grid, in the order in which they were requested
    STORE/plan/COUNT-HASH.jsonl  chunks that were planned together, one per line
    STORE/chunks/NAME.nc         the result of a chunk, complete or absent
    STORE/failed/NAME.json       why a chunk could not be computed
    STORE/claims/NAME            the process that is computing a chunk
    STORE/damaged/               files with a wrong checksum, moved out of the way
    STORE/log.jsonl              a line for every chunk that ended, and reports of drivers

Every file except the log appears complete or not at all, and only the order is ever changed. So the store is correct
after any crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..core.dataset.whole_file import write_whole
from ..core.problem import Algorithm, Problem
from ..core.result import Result
from ..core.specification import build, decode, differences
from ..numerics import interrupts
from .chunk_file import chunk_bytes, is_whole
from .part import SweepChunk, SweepPart, hashed

FORMAT = 1
FOLDERS = ("parts", "plan", "chunks", "failed", "claims", "damaged")


class SweepStore:
    """Folder in which a sweep is stored, with methods to read and write its files.

    Parameters
    ----------
    path : path
        Path of the folder.
    create : bool
        Whether to create a folder that does not exist; otherwise a missing folder is an error.

    Raises
    ------
    ValueError
        If the folder is not a store, or a later version wrote it.
    OSError
        If the folder cannot be created or written to.
    """

    def __init__(self, path: str | os.PathLike, *, create: bool = False) -> None:
        self.path = Path(path)
        marker = self.path / "sweep.json"
        if not marker.exists():
            if not create:
                raise FileNotFoundError(f"{self.path} is no store of a sweep: it has no sweep.json")
            self._create(marker)
        self._check(marker)

    def _create(self, marker: Path) -> None:
        # Look for the marker last: another process may write it, and other files, between any two looks.
        if self.path.exists() and not (self.path.is_dir() and (_is_begun(self.path) or marker.exists())):
            raise ValueError(f"store must be a new or empty folder or one of a sweep, got {self.path}")
        if self.path.is_symlink() and not self.path.exists():
            raise OSError(f"store {self.path} cannot be made: it is a link to a folder that does not exist")
        try:
            for name in FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"store {self.path} cannot be made: {error.strerror}") from error
        write_whole(marker, json.dumps({"format": FORMAT, "asymptotix": __version__}).encode())

    def _check(self, marker: Path) -> None:
        try:
            told = json.loads(marker.read_text())
            version = int(told["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{marker} is damaged: it must say the store's format") from error
        if version > FORMAT:
            raise ValueError(
                f"store {self.path} has format {version}, written by asymptotix {told.get('asymptotix')}; this version "
                f"reads up to {FORMAT}: upgrade it"
            )

    # ------------------------------------------------------------------------------------------ parts and plan

    def part_names(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "parts").glob("*.json"))

    def keep_part(self, name: str, part: SweepPart) -> None:
        """Write a part under ``name``; ValueError lists the differences if the store has another part of that name."""
        told, arrays = part.described()
        told |= {"arrays": {key: hashed(array) for key, array in arrays.items()}}
        told = json.loads(json.dumps(told | {"scalars": part.scalars}))
        place = self.path / "parts" / f"{name}.json"
        if place.exists():
            known = json.loads(place.read_text())
            grows = (*part.fields, "scalars", "array_names")
            if found := [path for path in differences(known, told) if path.rpartition(".")[2] not in grows]:
                each = ", ".join(f"{path} ({_at(known, path)} there, {_at(told, path)} here)" for path in found)
                raise ValueError(
                    f"store {self.path} has another sweep under {name!r}: it differs in {each}. Give the store of this "
                    "one another name, or go on with what is there"
                )
            return
        if arrays:
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, **{f"array_{k}": one for k, one in enumerate(arrays.values())})
            write_whole(place.with_suffix(".npz"), buffer.getbuffer())
            told["array_names"] = list(arrays)
        write_whole(place, json.dumps(told, indent=1).encode())

    def part_text(self, name: str) -> str:
        """Return the stored JSON of a part, in which hashes stand for arrays."""
        try:
            return (self.path / "parts" / f"{name}.json").read_text()
        except FileNotFoundError:
            there = ", ".join(self.part_names()) or "nothing"
            raise ValueError(f"store {self.path} has no part {name!r}; it has {there}") from None

    def part(self, name: str, problem: Problem | None = None, algorithm: Algorithm | None = None) -> SweepPart:
        """Return the part ``name``; its grid has the names, with 0 as values, because values are only in the plan.

        ``problem`` and ``algorithm`` must be given if they hold functions; otherwise they are read from the store.
        """
        told = json.loads(self.part_text(name))
        arrays: dict[str, np.ndarray] = {}
        if names := told.get("array_names"):
            with np.load(self.path / "parts" / f"{name}.npz", allow_pickle=False) as kept:
                arrays = {key: kept[f"array_{k}"] for k, key in enumerate(names)}
        if problem is None:
            found = build(told["problem"], arrays=arrays)
            assert isinstance(found, Problem)
            problem = found
        if algorithm is None and told["algorithm"] is not None:
            made = build(told["algorithm"], arrays=arrays)
            assert isinstance(made, Algorithm)
            algorithm = made
        options = decode(told["options"], arrays=arrays)
        return SweepPart(told["verb"], problem, dict.fromkeys(told["over"], 0.0), algorithm, options=options)

    def scalars(self, name: str) -> list[str]:
        """Return the names, "dim" included, whose value in the first call of the part was one number, not a list."""
        return json.loads(self.part_text(name))["scalars"]

    def keep_order(self, name: str, part: SweepPart) -> None:
        """Store the order in which the values of a part were requested, merged with that of earlier calls."""
        known = self.order(name)
        asked = {one: part.values_of(one) for one in part.grid} | {"dim": list(part.dim), "seed": list(part.seeds)}
        merged = {one: merged_order(known.get(one, []), values) for one, values in asked.items()}
        if merged != known:
            write_whole(self.path / "parts" / f"{name}.order", json.dumps(merged).encode())

    def order(self, name: str) -> dict[str, list[Any]]:
        """Return name -> values of a part, in the order of the requests; the plan may have more values than this."""
        try:
            return dict(json.loads((self.path / "parts" / f"{name}.order").read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def plan(self) -> list[SweepChunk]:
        """Return a list of all planned chunks of all parts; see :meth:`each_planned`."""
        return list(self.each_planned())

    def each_planned(self) -> Iterator[SweepChunk]:
        """Yield every planned chunk of all parts once, in the order of the files in the folder `plan`."""
        found: set[tuple[str, str]] = set()  # a chunk that two parts share is computed once
        for file in sorted((self.path / "plan").glob("*.jsonl")):
            text = file.read_bytes()
            if _plan_hash(text) != file.stem.partition("-")[2]:
                raise ValueError(f"{file} is damaged: remove it, and the next sweep plans what it held")
            for line in text.decode().splitlines():
                chunk = SweepChunk.from_json(json.loads(line))
                if (chunk.part, chunk.name) not in found:
                    found.add((chunk.part, chunk.name))
                    yield chunk

    def add_to_plan(self, chunks: Sequence[SweepChunk]) -> None:
        if not chunks:
            return
        text = "".join(json.dumps(chunk.to_json()) + "\n" for chunk in chunks).encode()
        # File names sort in the order of writing, and two processes with the same plan choose the same name.
        count = len(list((self.path / "plan").glob("*.jsonl")))
        write_whole(self.path / "plan" / f"{count:06d}-{_plan_hash(text)}.jsonl", text)

    # ------------------------------------------------------------------------------------------ results and failures

    def done(self) -> set[str]:
        return _stems(self.path / "chunks", ".nc")

    def failures(self) -> set[str]:
        return _stems(self.path / "failed", ".json")

    def claimed(self) -> set[str]:
        return {name for name in _names(self.path / "claims") if not name.startswith(".")}

    def claim_path(self, name: str) -> Path:
        return self.path / "claims" / name

    def chunk_path(self, name: str) -> Path:
        return self.path / "chunks" / f"{name}.nc"

    def failure_path(self, name: str) -> Path:
        return self.path / "failed" / f"{name}.json"

    def has(self, name: str) -> bool:
        return self.chunk_path(name).exists()

    def has_failed(self, name: str) -> bool:
        return self.failure_path(name).exists()

    def keep(self, chunk: SweepChunk, result: Result) -> None:
        """Store the result of a chunk; an existing result is not replaced."""
        if self.has(chunk.name):
            return
        write_whole(self.chunk_path(chunk.name), chunk_bytes(chunk.name, result))
        self.failure_path(chunk.name).unlink(missing_ok=True)

    def keep_failure(self, chunk: SweepChunk, message: str) -> None:
        told = {"chunk": chunk.to_json(), "message": message}
        write_whole(self.failure_path(chunk.name), json.dumps(told, indent=1).encode())

    def failure(self, name: str) -> str:
        try:
            return str(json.loads(self.failure_path(name).read_text())["message"])
        except (OSError, ValueError, KeyError):
            return "it failed, and why cannot be read"

    def forget_failures(self, names: Iterable[str]) -> None:
        for name in names:
            self.failure_path(name).unlink(missing_ok=True)

    def contents(self, name: str) -> bytes | None:
        """Return the bytes of a chunk's file; None if it is missing, damaged, or the file of another chunk."""
        try:
            data = self.chunk_path(name).read_bytes()
        except FileNotFoundError:
            return None
        return data if is_whole(data, name) else None

    def set_aside_damaged(self, names: Iterable[str]) -> list[str]:
        """Move the damaged files of the chunks ``names`` into the folder `damaged`; return these chunks' names."""
        found = []
        for name in sorted(self.done().intersection(names)):
            interrupts.check()
            if self.contents(name) is None:
                with contextlib.suppress(FileNotFoundError):  # another driver was first
                    os.replace(self.chunk_path(name), self.path / "damaged" / f"{name}.nc")
                found.append(name)
        return found

    # ------------------------------------------------------------------------------------------ log

    def note(self, line: Mapping[str, object]) -> None:
        """Append a line to the log, by one write of a few hundred bytes, which a shared file system does not split."""
        text = (json.dumps(line) + "\n").encode()
        place = self.path / "log.jsonl"
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OSError(error.errno, f"{place} cannot be written: {error.strerror or error}") from error

    def log(self) -> Iterator[dict[str, Any]]:
        """Yield all readable lines of the log; a line that was cut off is skipped."""
        try:
            text = (self.path / "log.jsonl").read_text(errors="replace")
        except OSError:
            return
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _is_begun(folder: Path) -> bool:
    """Return whether a folder is empty or a store without sweep.json, which is unfinished or being created now."""
    return all(name in FOLDERS or name.startswith(".sweep.json.") for name in _names(folder))


def merged_order(known: list[Any], asked: list[Any]) -> list[Any]:
    """Return the larger of two lists of values; if neither contains the other, their union, sorted if both are."""
    if set(known) <= set(asked):
        return asked
    if set(asked) <= set(known):
        return known
    both = [*known, *(value for value in asked if value not in known)]
    for falling in (False, True):
        if all(one == sorted(one, reverse=falling) for one in (known, asked)):
            return sorted(both, reverse=falling)
    return both


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as found:
        return [entry.name for entry in found]


def _stems(folder: Path, suffix: str) -> set[str]:
    return {name.removesuffix(suffix) for name in _names(folder) if name.endswith(suffix) and not name.startswith(".")}


def _plan_hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _at(described: object, path: str) -> str:
    for name in path.partition(":")[0].split("."):
        described = described.get(name) if isinstance(described, dict) else None
    text = repr(described)
    return text if len(text) < 60 else text[:57] + "..."
