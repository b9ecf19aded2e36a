"""The expected time of a search, shown during the search."""

from __future__ import annotations

from ....core.progress import Say
from ..nodes import Nodes

#: Expected time of one more step of a staircase, and of exact recovery, in units of the time of an average over coarse
#: nodes. Both vary by factors.
AVERAGES_PER_STEP, AVERAGES_OF_RECOVERY = 200, 100
#: Number of seconds from which on the expected time is shown.
_LONG = 20.0


def with_expected_time(say: Say, averages: int, nodes: Nodes) -> Say:
    """Return ``say``; if ``averages`` averages over coarse nodes take over 20 s, its texts show this expected time."""
    say("timing an average")
    seconds = averages * nodes.seconds
    return say if seconds < _LONG else lambda text: say(f"{text} (all of it about {_rounded(seconds)})")


def _rounded(seconds: float) -> str:
    """Return seconds as a text, rounded to one digit in seconds, minutes or hours.

    >>> _rounded(47), _rounded(70), _rounded(5000)
    ('50 s', '1 min', '1 h')
    """
    unit, name = next(((size, name) for size, name in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s"))
    return f"{float(f'{seconds / unit:.0e}'):g} {name}"
