"""The main jobs, end to end: theory against finite-size experiments, as tables and pictures."""

from __future__ import annotations

from pathlib import Path


def main(out: Path, quick: bool = False) -> None:
    """Run all demonstrations; tables are printed, pictures and results written to ``out``."""
    from . import telling_chains_apart, training, two_layers

    for part in (two_layers, training, telling_chains_apart):
        part.main(out, quick)
        print()
