"""A finished figure: the picture, its numbers, its findings; and the folder that holds them."""

from __future__ import annotations

import hashlib
import io
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from ..._version import __version__
from ...core.dataset.whole_file import write_whole
from ...core.result import Result
from .record import Findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORD = "record.json"
PAGE = "record.md"
DPI = 160


@dataclass(frozen=True)
class Reproduction:
    """A finished figure.

    Attributes
    ----------
    name, shows, source : str
        As in `Reproducible`.
    size : str
        "quick" or "paper".
    settings : mapping
        The settings used.
    results : mapping of str to Result
        Theory, experiments and thresholds, by the names of their files.
    datasets : mapping of str to xarray.Dataset
        Other numbers of the figure, by the names of their files.
    figure : matplotlib.figure.Figure
    findings : Findings
    files : mapping of str to str
        Name of a result or dataset -> its file, relative to the figure's folder; some are shared with other figures.
    """

    name: str
    shows: str
    source: str
    size: str
    settings: Mapping[str, Any]
    results: Mapping[str, Result]
    datasets: Mapping[str, xr.Dataset]
    figure: Figure
    findings: Findings
    files: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path, seconds: float) -> None:
        """Write picture and record to the folder that already has the results; the JSON record comes last.

        ``seconds`` is the time that making the figure took.
        """
        title = self.name.rpartition("/")[2]
        for kind in ("png", "pdf"):
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format=kind, dpi=DPI)
            write_whole(folder / f"{title}.{kind}", buffer.getvalue())
        write_whole(folder / PAGE, self.page(seconds).encode())
        files = [f"{title}.png", f"{title}.pdf", PAGE, *self.files.values()]
        record = {
            "name": self.name,
            "shows": self.shows,
            "source": self.source,
            "size": self.size,
            "settings": _plain(self.settings),
            "version": __version__,
            "seconds": round(seconds, 1),
            "files": {file: _sha256(folder / file) for file in files},
            **self.findings.as_json(),
        }
        write_whole(folder / RECORD, json.dumps(record, indent=1).encode())

    def page(self, seconds: float) -> str:
        """Return the record as one page in Markdown; ``seconds`` is the time that making the figure took."""
        found = self.findings
        title = self.name.rpartition("/")[2]
        lines = [f"# {self.name}", "", f"{self.shows}. {self.source}.", "", f"![{self.shows}]({title}.png)", ""]
        lines += [f"**Verdict: {found.verdict}.**", ""]
        if found.claims:
            rows = [[c.what, f"{c.published} ({c.source})", c.found, judged(c.holds, c.script)] for c in found.claims]
            lines += ["## Published, and found", "", *table(["what", "published", "found", "holds"], rows), ""]
        if found.agreements:
            rows = [
                [a.curve, str(a.points), _ratio(a.chi2, a.points), f"{a.largest:.1f}", _trend(a.distances), a.words]
                for a in found.agreements
            ]
            heads = ["experiment against theory", "points", "χ²/points", "largest", "mean distance by size", ""]
            lines += ["## Agreement", "", *table(heads, rows), "", _AGREEMENT_WORDS, ""]
        if found.remarks:
            lines += ["## Remarks", "", *(f"* {remark}" for remark in found.remarks), ""]
        lines += ["## Parameters", "", f"Size `{self.size}`: {_listed(self.settings)}.", ""]
        told = {name: _described(result) for name, result in self.results.items()}
        told |= {name: ", ".join(map(str, ds.data_vars)) for name, ds in self.datasets.items()}
        files = {**dict.fromkeys(told, ""), **self.files}  # without a folder there are no files
        lines += [f"* `{file or name}`: {told.get(name, 'shared with other figures')}" for name, file in files.items()]
        lines += ["", f"asymptotix {__version__}, {platform.machine()}, {seconds:.0f} s for what was done last.", ""]
        return "\n".join(lines)


_AGREEMENT_WORDS = (
    "A distance is that of the experiment's mean from theory; in the columns χ² and largest it is counted in errors "
    "(standard error over runs and numerical error of theory). Mean distance: of the curve, relative to its mean."
)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, with column titles ``heads``."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *cells]]


def finished_record(folder: Path, size: str, settings: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the record of a folder if its figure is complete, of this size and with these settings; else None."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        same = record["size"] == size and record["settings"] == _plain(settings) and record["version"] == __version__
        whole = all(_sha256(folder / file) == told for file, told in record["files"].items())
        return record if same and whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def judged(holds: bool | None, script: str) -> str:
    """Return the verdict on a claim in words (None: not decided), with the ``script`` that shows why it fails."""
    if holds is None:
        return "not decided"
    return "yes" if holds else "**no**" + (f": `{script}`" if script else "")


def _ratio(chi2: float, points: int) -> str:
    return f"{chi2 / points:.2f}" if points else "–"


def _trend(distances: Mapping[int, tuple[float, float]]) -> str:
    entries = [f"{100 * mean:+.2f}({100 * error:.2f}) % at {size}" for size, (mean, error) in distances.items()]
    return ", ".join(entries) or "–"


def _described(result: Result) -> str:
    """Return a text on a result: its problem, its algorithm, and the statuses of its points."""
    converged = result.ds["converged"]
    ended = Counter(str(word) for word in result.status.values.ravel()[~converged.values.ravel()])
    words = [f"{count} × {word}" for word, count in ended.most_common(3)]
    algorithm = "" if result.algorithm is None else f" by {result.algorithm!r}"
    more = f"; {'; '.join(words)}" if words else ""
    ok = f"{int(converged.sum())} of {converged.size} points ok"
    return f"{result.kind} of `{result.problem!r}`{algorithm}: {ok}{more}"


def _listed(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _plain(settings: Mapping[str, object]) -> Any:
    return json.loads(json.dumps(settings, default=str))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
