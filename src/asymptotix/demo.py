"""The demonstration: one figure of each theory, at a size that takes about a minute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .figures.making.registry import named
from .figures.making.reproduction import Reproduction

#: Name of a figure -> the settings that make it smaller than ``asymptotix reproduce`` does. With larger sizes a figure
#: takes longer than a minute; with smaller ones its errors are larger.
MINUTES: dict[str, dict[str, Any]] = {
    "deep/fig1-left": {
        "alphas": (0.1, 0.16, 0.2, 0.24, 0.3, 0.45, 0.65, 0.71, 0.75, 0.8, 0.87, 0.98, 1.02, 1.3),
        "simulated": (0.4, 0.6, 0.9, 1.2),
        "dim": (300, 600),
        "seeds": 4,
        "iterations": 40,
    },
    "training/fig1": {
        "spectra_of": ((0.05, 60, 3), (0.5, 60, 3), (1.0, 60, 3), (4.0, 40, 3)),
        "alphas": (0.05, 0.2, 0.5),
        "dims": (30, 60),
    },
    "paths/fig2": {"tasks": 3, "test_examples": 400, "sampled": [10], "draws": 150},
}
#: Sizes for ``main(quick=True)``, smaller still.
QUICK: dict[str, dict[str, Any]] = {
    "deep/fig1-left": {"alphas": (0.1, 0.3, 0.7, 1.02), "simulated": (0.6, 1.2), "dim": (200,), "seeds": 2},
    "training/fig1": {
        "spectra_of": ((0.05, 30, 2), (0.5, 30, 2), (1.0, 30, 2), (2.0, 30, 2)),
        "alphas": (0.2, 0.5),
        "dims": (20, 30),
        "seeds": 2,
        "points": 8,
    },
    "paths/fig2": {"tasks": 2, "test_examples": 200, "sampled": [10], "draws": 60},
}


def main(out: Path, quick: bool = False) -> None:
    """Make the figures, each in a subfolder of ``out``, and print their summaries; ``quick``: at smaller sizes."""
    for name, settings in (QUICK if quick else MINUTES).items():
        print(f"{name} ...", flush=True)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        made = named(name)(out=folder, **settings)
        made.save(folder, time.perf_counter() - began)
        print(f"\n{summary(made)}\nPicture, data and record: {folder}\n", flush=True)
    print("These are small sizes. The figures of the papers at theirs, and all others: asymptotix reproduce")


def summary(made: Reproduction) -> str:
    """Return the text of a figure: each published claim with our finding, and the largest distance of each curve."""
    signs: Mapping[bool | None, str] = {True: "holds", False: "DOES NOT HOLD", None: "not decided"}
    lines = [f"{made.shows} ({made.source})", "", "  Published, and found:"]
    for claim in made.findings.claims:
        lines += [f"  * {claim.what}: {signs[claim.holds]}", f"      published {claim.published}; found {claim.found}"]
    lines += ["", "  Experiment against theory (largest distance in errors):"]
    lines += [f"  * {each.curve}: {each.largest:.1f}, {each.words}" for each in made.findings.agreements]
    return "\n".join(lines)
