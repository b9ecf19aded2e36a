"""Claims, sizes and released numbers of the papers: read from one file per paper, and judged by our numbers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...core.words import format_number
from .record import Claim


@dataclass(frozen=True)
class PublishedClaim:
    """A claim of a paper, and the rule that judges it.

    Attributes
    ----------
    what : str
        The claim in our words. The figure fills in the names in braces, in ``published`` too.
    published : float or str
        The number or the text as printed.
    source : str
        Its place in the paper.
    rule : str
        "equals": our number differs from the published number by at most ``rounding`` plus three of our errors.
        "above", "below": our number is above or below ``limit``; if it has an error, by more than ``errors`` of its
        errors, otherwise the claim is not decided. "within": our number is in the interval ``limits``, ends included.
        "ordered": our numbers ascend, every step by more than three errors of the smaller number.
        "given": the figure judges.
    rounding, limit, limits, errors :
        Numbers that ``rule`` mentions.
    script : str
        Name of the script in ``examples/errata`` that shows why the claim does not hold.
    """

    what: str
    published: float | str
    source: str
    rule: str = "given"
    rounding: float = 0.0
    limit: float = 0.0
    limits: tuple[float, float] = (-math.inf, math.inf)
    errors: float = 3.0
    script: str = ""

    def judged(self, value: ArrayLike | None, found: str = "", error: ArrayLike | None = None, **words: Any) -> Claim:
        """Judge the claim by our number ``value`` and its ``error``.

        ``value`` is an array for the rule "ordered" and the verdict (None: not decided) for "given". ``found`` is our
        finding in words, by default number and error; ``words`` replace the names in braces.
        """
        printed = self.published.format(**words) if isinstance(self.published, str) else f"{self.published:g}"
        script = f"examples/errata/{self.script}.py" if self.script else ""
        holds: Any = value if self.rule == "given" else self._holds(value, error, printed)
        found = found or format_number(float(np.asarray(value)), float(np.asarray(error or 0.0)))
        return Claim(self.what.format(**words), printed, self.source, found, holds, script)

    def _holds(self, value: Any, error: Any, printed: str) -> bool | None:
        if self.rule == "equals":
            return abs(float(printed) - value) <= self.rounding + 3 * (error or 0.0)
        if self.rule == "within":
            return self.limits[0] <= value <= self.limits[1]
        if self.rule == "ordered":
            values = np.asarray(value)
            gaps, noise = np.diff(values, axis=0), 0.0 if error is None else 3 * np.asarray(error)[:-1]
            return bool((gaps > noise).all())
        side = {"above": 1, "below": -1}[self.rule]
        return beyond(side * value, error, side * self.limit, self.errors)


def beyond(value: float, error: float | None, limit: float = 0.0, errors: float = 3.0) -> bool | None:
    """Return whether ``value`` exceeds ``limit``; None if it is within ``errors`` times its ``error`` of the limit."""
    return value > limit if error is None or abs(value - limit) > errors * error else None


class PublishedFigure:
    """A figure of a paper, as the paper's file describes it. Call it to judge a claim by its id.

    Attributes
    ----------
    shows, source : str
        One line on the content of the figure, and its place.
    needs : tuple of str
        Data sets that it needs.
    claims : dict of str to PublishedClaim
        The claims on the figure, by their ids in the paper's file.
    released : mapping
        Published numbers of the paper that figures draw or compare with, by name.
    """

    def __init__(self, name: str) -> None:
        self._paper, self._own = _papers()[name]
        self.shows, self.source = self._own["shows"], f"{self._paper['paper']}, {self._own['source']}"
        self.needs = tuple(self._own.get("needs", ()))
        self.released: Mapping[str, Any] = self._paper.get("released", {})
        self.claims = {key: PublishedClaim(**claim) for key, claim in self._own["claims"].items()}

    def __call__(
        self, claim: str, value: ArrayLike | None, found: str = "", error: ArrayLike | None = None, **words: Any
    ) -> Claim:
        """Judge the claim with the id ``claim``; arguments as in :meth:`PublishedClaim.judged`."""
        return self.claims[claim].judged(value, found, error, **words)

    def remarks(self, **words: Any) -> list[str]:
        """Return the remarks of the figure; ``words`` and texts of the paper's file replace the names in braces."""
        return [remark.format(**self._paper, **words) for remark in self._own["remarks"]]

    def size(self, size: str) -> dict[str, Any]:
        """Return cost and settings of a size; the paper's file may name another figure whose settings are used."""
        own = self._own[size]
        if isinstance(settings := own["settings"], str):
            settings = _papers()[settings][1][size]["settings"]
        return {**own, "settings": {key: _fixed(value) for key, value in settings.items()}}


def _fixed(value: Any) -> Any:
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


@cache
def _papers() -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return name of a figure -> (the file of its paper, the file's section on the figure), as parsed."""
    read = [tomllib.loads(file.read_text("utf-8")) for file in (files("asymptotix.figures") / "papers").iterdir()]
    return {name: (paper, own) for paper in read for name, own in paper.items() if "/" in name}
