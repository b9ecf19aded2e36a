"""Check whether the data sets that a figure needs are on this computer."""

from __future__ import annotations

from collections.abc import Sequence

from ...tasks.stored.catalogue import stored_set
from ...tasks.stored.locate import VARIABLE, places, stored_file
from ...tasks.stored.omniglot import omniglot_sources


def missing_data(names: Sequence[str]) -> str:
    """Return which of these data sets are missing and how to get them, as the end of a sentence; "" if none is.

    Only the names of files are checked here; their content is verified when they are read.
    """
    if not names:
        return ""
    try:
        places()
    except FileNotFoundError as error:  # the environment variable names a missing directory
        return f"needs the data set {', '.join(names)}: {error}"
    absent = [name for name in names if not _is_there(name)]
    if not absent:
        return ""
    commands = "; ".join(f"asymptotix data get {name}" for name in absent)
    return f"needs the data set {', '.join(absent)}: `{commands}`, or {VARIABLE}=DIRECTORY that holds it"


def _is_there(name: str) -> bool:
    try:
        if name == "omniglot":
            omniglot_sources()  # any of the forms in which it can be stored
        else:
            for file in stored_set(name).files:
                stored_file(name, file.name, verify=False)
    except FileNotFoundError:
        return False
    return True
