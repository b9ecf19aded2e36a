"""Make figures and store them in folders: one figure, or all that are missing, with a gallery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...core.dataset.whole_file import write_whole
from ...numerics.memory import refuse_beyond_memory
from . import gallery
from .registry import FIGURES, Reproducible, named
from .reproduction import finished_record

Say = Callable[[str], None]
PLACE = Path("asymptotix-figures")
#: Folder next to the folders of a paper's figures, for parts that several of these figures use.
SHARED = "shared"


def reproduce(name: str, size: str = "quick", out: Path = PLACE, say: Say = print) -> dict[str, Any]:
    """Make a figure in the folder ``out/name`` and return its record (JSON values); stored results are reused.

    ``say`` receives lines of progress.

    Raises
    ------
    ValueError
        For an unknown name (the message has the nearest one) or an unknown size.
    OSError
        For a folder that cannot be written to, or a missing data set.
    MemoryError
        For a size that does not fit into memory; raised before anything is computed.
    """
    chosen = named(name)
    settings = chosen.settings_of(size)
    folder = _checked_folder(out, name)
    if (record := finished_record(folder, size, settings)) is not None:
        say(f"{name}: there already")
        return record
    chosen.refuse_without_data()
    needed = int(chosen.sizes[size].gib * 2**30)
    refuse_beyond_memory(needed, f"{name} at size {size}", "--size quick" if size == "paper" else "a larger machine")
    began = time.perf_counter()
    made = chosen(size, out=folder, shared=folder.parent / SHARED, say=lambda line: say(f"{name}: {line}"))
    made.save(folder, time.perf_counter() - began)
    record = finished_record(folder, size, settings)
    assert record is not None, "what was just written must be readable"
    say(f"{name}: {record['verdict']} ({record['seconds']:.0f} s)")
    return record


def reproduce_all(size: str = "quick", out: Path = PLACE, say: Say = print) -> None:
    """Make every missing figure whose data sets are present, and the gallery; RuntimeError if a figure failed."""
    failures = []
    for chosen in sorted(FIGURES.values(), key=lambda chosen: gallery.place(chosen.name)):
        if (why := chosen.missing()) and _made(chosen, size, out) is None:
            say(f"{chosen.name} {why}")
            continue
        try:
            reproduce(chosen.name, size, out, say)
        except (ArithmeticError, ValueError, RuntimeError, MemoryError, NotImplementedError) as error:
            failures.append(chosen.name)  # go on with the other figures
            say(f"{chosen.name}: failed: {error}")
        write_gallery(size, out)
    say(f"gallery: {out / 'index.html'}")
    if failures:
        raise RuntimeError(f"{len(failures)} figures failed: {', '.join(failures)}; call again to go on")


def write_gallery(size: str, out: Path) -> None:
    """Write ``index.html``, the page of all figures made so far, and ``verdicts.md``, their verdicts, into ``out``."""
    records = list(_records(size, out))
    write_whole(out / "index.html", gallery.page(records, size).encode())
    write_whole(out / "verdicts.md", gallery.verdicts(records).encode())


def _records(size: str, out: Path) -> Iterator[tuple[Reproducible, dict[str, Any] | None]]:
    for chosen in sorted(FIGURES.values(), key=lambda chosen: gallery.place(chosen.name)):
        yield chosen, _made(chosen, size, out)


def _made(chosen: Reproducible, size: str, out: Path) -> dict[str, Any] | None:
    """Return the record of a finished figure, or None; its data sets need not be present."""
    return finished_record(out / chosen.name, size, chosen.settings_of(size))


def _checked_folder(out: Path, name: str) -> Path:
    """Create the folder of a figure, check that it can be written to, and return it."""
    folder = out / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(error.errno, f"--out {out} cannot be written to: {error.strerror}") from error
    return folder
