"""The main jobs, end to end: theory against finite-size experiments, as tables and pictures."""

from __future__ import annotations

from pathlib import Path


def main(out: Path, quick: bool = False) -> None:
    """Run all demonstrations; tables are printed, pictures and results written to ``out``."""
    from . import learning_in_turn, telling_chains_apart, training

    for part in (learning_in_turn, training, telling_chains_apart):
        part.main(out, quick)
        print()
