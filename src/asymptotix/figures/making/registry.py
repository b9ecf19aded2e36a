"""The table FIGURES of all figures that can be made; the module of each figure enters it with a decorator."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import plot
from ...numerics import checks
from .claims import PublishedFigure
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
    """Settings of a figure at one size, and their cost.

    Attributes
    ----------
    minutes : float
        Time on two cores; measured, or extrapolated from the smaller size.
    gib : float
        Upper limit of the memory.
    settings : mapping
        Arguments of the figure's function.
    gpu_minutes : float, optional
        Time on a GPU, if that is faster.
    """

    minutes: float
    gib: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpu_minutes: float | None = None


@dataclass(frozen=True)
class Reproducible:
    """A figure that can be made.

    Call it to make it: ``asx.figures.training.fig2(size="quick", seeds=2)``.

    Attributes
    ----------
    name : str
        Paper and figure, for example "training/fig2".
    shows : str
        One line on its content.
    source : str
        Its place in the literature.
    sizes : mapping of str to Size
        "quick" and "paper".
    make : callable
        Takes a `Parts` and the settings; returns (matplotlib figure, findings).
    needs : tuple of str
        Data sets that it needs, by their names in ``asymptotix data get``.
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
            Folder in which results are stored as they are computed; results found there are reused.
        shared : path, optional
            Folder of parts that several figures use, such as trained networks; ``out`` by default.
        progress : bool, optional
            As for :func:`asymptotix.solve`.
        say : callable, optional
            Receives a line of text for every result that is started.
        **settings
            Replacements for settings of the size: see ``fig.sizes["quick"].settings``.

        Returns
        -------
        Reproduction
            ``.figure`` is the picture, ``.results`` and ``.datasets`` are its data, ``.findings`` has its verdict.
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
        """Raise FileNotFoundError if a data set that the figure needs is missing."""
        if why := self.missing():
            raise FileNotFoundError(f"{self.name} {why}")

    def missing(self) -> str:
        """Return which data sets are missing, as the end of a sentence; "" if the figure can be made."""
        return missing_data(self.needs)

    def settings_of(self, size: str) -> dict[str, Any]:
        return dict(self.sizes[checks.one_of("size", size, tuple(self.sizes))].settings)


def figure(
    name: str, *, shows: str, source: str, quick: Size, paper: Size, needs: Sequence[str] = ()
) -> Callable[[Making], Reproducible]:
    """Return a decorator that registers the function that makes a figure; arguments as in `Reproducible`.

    The function is called only if the data sets that it ``needs`` are present.
    """

    def register(make: Making) -> Reproducible:
        FIGURES[name] = Reproducible(name, shows, source, {"quick": quick, "paper": paper}, make, tuple(needs))
        return FIGURES[name]

    return register


def figure_of_paper(name: str) -> Callable[[Making], Reproducible]:
    """Return a decorator that registers the function that makes a figure of a paper.

    The function receives what the paper's file has on the figure as ``said``, a `PublishedFigure`.
    """
    said = PublishedFigure(name)
    quick, paper = (Size(**said.size(size)) for size in ("quick", "paper"))
    register = figure(name, shows=said.shows, source=said.source, quick=quick, paper=paper, needs=said.needs)
    return lambda make: register(partial(make, said=said))


def named(name: str) -> Reproducible:
    """Return the figure with this name.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest name.
    """
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, n=1, cutoff=0.0)
    raise ValueError(f"there is no figure {name!r}; did you mean {near[0]!r}? `asymptotix reproduce` lists all")
