"""The main jobs, end to end: theory against finite-size experiments, as tables and pictures."""

from __future__ import annotations

from pathlib import Path


def main(out: Path, quick: bool = False) -> None:
    """Run all demonstrations; tables are printed, pictures and results written to ``out``."""
    from . import training, two_layers

    training.main(out, quick)
    print()
    two_layers.main(out, quick)
