"""How long a search will take, said while it lasts."""

from __future__ import annotations

from ....core.progress import Say
from ..nodes import Nodes

#: Averages on few nodes that take as long as one more step of a staircase, and as exact recovery: both vary by factors.
AVERAGES_PER_STEP, AVERAGES_OF_RECOVERY = 200, 100
#: Seconds from which on it is worth saying.
_LONG = 20.0


def with_expected_time(say: Say, averages: int, nodes: Nodes) -> Say:
    """Say how long so many averages on few nodes take, too, where that is long."""
    say("timing an average")
    seconds = averages * nodes.seconds
    return say if seconds < _LONG else lambda text: say(f"{text} (all of it about {_rounded(seconds)})")


def _rounded(seconds: float) -> str:
    """To one digit, in the unit that suits: it is not known better.

    >>> _rounded(47), _rounded(70), _rounded(5000)
    ('50 s', '1 min', '1 h')
    """
    unit, name = next(((size, name) for size, name in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s"))
    return f"{float(f'{seconds / unit:.0e}'):g} {name}"
