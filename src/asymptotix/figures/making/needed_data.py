"""Whether the data sets that a figure is made from are on this computer."""

from __future__ import annotations

from collections.abc import Sequence

from ...tasks.stored.catalogue import stored_set
from ...tasks.stored.locate import VARIABLE, places, stored_file
from ...tasks.stored.omniglot import omniglot_sources


def missing_data(names: Sequence[str]) -> str:
    """What is not there of these data sets and how to get it, as the end of a sentence; "" where all are there.

    Only names of files are looked at: whether they hold what was published is asked when they are read.
    """
    if not names:
        return ""
    try:
        places()
    except FileNotFoundError as error:  # the variable names a directory that is not there
        return f"needs the data set {', '.join(names)}: {error}"
    absent = [name for name in names if not _is_there(name)]
    if not absent:
        return ""
    commands = "; ".join(f"asymptotix data get {name}" for name in absent)
    return f"needs the data set {', '.join(absent)}: `{commands}`, or {VARIABLE}=DIRECTORY that holds it"


def _is_there(name: str) -> bool:
    try:
        if name == "omniglot":
            omniglot_sources()  # in any of its forms
        else:
            for file in stored_set(name).files:
                stored_file(name, file.name, verify=False)
    except FileNotFoundError:
        return False
    return True
