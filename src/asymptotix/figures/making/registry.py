"""What can be reproduced: the table of figures, filled by the files of the papers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import plot
from ...numerics import checks
from .needed_data import missing_data
from .parts import Parts
from .record import Findings
from .reproduction import Reproduction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Name, such as "training/fig2" -> figure.
FIGURES: dict[str, Reproducible] = {}

Making = Callable[..., "tuple[Figure, Findings]"]


@dataclass(frozen=True)
class Size:
    """How large a figure is made, and what that costs.

    Attributes
    ----------
    minutes : float
        On two cores; measured, or extrapolated from the smaller size.
    gib : float
        Memory at most.
    settings : mapping
        What the figure's function is called with.
    gpu_minutes : float, optional
        On a GPU, where that is faster.
    """

    minutes: float
    gib: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpu_minutes: float | None = None


@dataclass(frozen=True)
class Reproducible:
    """A figure that can be made.

    Calling it makes it: ``asx.figures.training.fig2(size="quick", seeds=2)``.

    Attributes
    ----------
    name : str
        Paper and figure, "training/fig2".
    shows : str
        In one line.
    source : str
        Where it was published.
    sizes : mapping of str to Size
        "quick" and "paper".
    make : callable
        Takes parts and settings, returns the picture and what is found.
    needs : tuple of str
        Data sets that it is made from, as ``asymptotix data get`` calls them.
    """

    name: str
    shows: str
    source: str
    sizes: Mapping[str, Size]
    make: Making
    needs: tuple[str, ...] = ()

    def __call__(
        self,
        size: str = "quick",
        *,
        out: Path | str | None = None,
        shared: Path | str | None = None,
        progress: bool | None = None,
        say: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> Reproduction:
        """Make the figure.

        Parameters
        ----------
        size : "quick" or "paper"
        out : path, optional
            Folder in which results are kept while they are computed, and taken from if they are there.
        shared : path, optional
            Folder of what this figure shares with others, such as trained networks; ``out`` by default.
        progress : bool, optional
            As for :func:`asymptotix.solve`.
        say : callable, optional
            Gets a line for every result that is begun.
        **settings
            Changes to those of the size: see ``fig.sizes["quick"].settings``.

        Returns
        -------
        Reproduction
            ``.figure`` is the picture, ``.results`` and ``.datasets`` what is drawn, ``.findings`` what it says.
        """
        self.refuse_without_data()
        own = self.settings_of(size) | settings
        if unknown := [name for name in settings if name not in self.settings_of(size)]:
            accepted = ", ".join(self.settings_of(size))
            raise TypeError(f"unknown setting of {self.name}: {', '.join(unknown)}; accepted are {accepted}")
        folder, common = (None if place is None else Path(place) for place in (out, shared))
        parts = Parts(folder, say or (lambda line: None), progress, common)
        with plot.style():
            figure, findings = self.make(parts, **own)
        made = (parts.results, parts.datasets, figure, findings, parts.files)
        return Reproduction(self.name, self.shows, self.source, size, own, *made)

    def refuse_without_data(self) -> None:
        """Raise an error where a data set that it needs is not here."""
        if why := self.missing():
            raise FileNotFoundError(f"{self.name} {why}")

    def missing(self) -> str:
        """Why it cannot be made here, as the end of a sentence: a data set that is not there; "" where it can."""
        return missing_data(self.needs)

    def settings_of(self, size: str) -> dict[str, Any]:
        return dict(self.sizes[checks.one_of("size", size, tuple(self.sizes))].settings)


def figure(
    name: str, *, shows: str, source: str, quick: Size, paper: Size, needs: Sequence[str] = ()
) -> Callable[[Making], Reproducible]:
    """Register the function that makes a figure, which is called only where the data sets that it needs are found."""

    def register(make: Making) -> Reproducible:
        FIGURES[name] = Reproducible(name, shows, source, {"quick": quick, "paper": paper}, make, tuple(needs))
        return FIGURES[name]

    return register


def named(name: str) -> Reproducible:
    """The figure of a name.

    Raises
    ------
    ValueError
        With the nearest name, where there is none.
    """
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.0)
    raise ValueError(f"there is no figure {name!r}; did you mean {near[0]!r}? `asymptotix reproduce` lists all")
