"""Whether the data sets that a figure is made from are on this computer."""

from __future__ import annotations

from collections.abc import Sequence

from ...tasks.stored.catalogue import StoredFile, stored_set
from ...tasks.stored.locate import VARIABLE, candidates, places


def missing_data(names: Sequence[str]) -> str:
    """What is not there of these data sets and how to get it, as the end of a sentence; "" where all are there.

    Only names of files are looked at: whether they hold what was published is asked when they are read.
    """
    try:
        absent = [name for name in names if not _is_there(name)]
    except FileNotFoundError as error:  # the variable names a directory that is not there
        return f"needs the data set {', '.join(names)}: {error}"
    if not absent:
        return ""
    commands = "; ".join(f"asymptotix data get {name}" for name in absent)
    return f"needs the data set {', '.join(absent)}: `{commands}`, or {VARIABLE}=DIRECTORY that holds it"


def _is_there(name: str) -> bool:
    owner, looked = stored_set(name), places().values()

    def found(file: StoredFile) -> bool:
        return any(path.is_file() for place in looked for path in candidates(owner, file, place))

    return any(map(found, owner.instead)) or all(map(found, owner.files))
