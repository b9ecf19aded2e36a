"""Numbers from independent calculations, read from tests/reference."""

import json
from pathlib import Path
from typing import Any


def reference(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "reference" / f"{name}.json").read_text())


def allowance(value: float, error: float) -> float:
    """How far a result may be from a reference: three standard errors, or 1e-3 relative if that is more."""
    return max(3 * error, 1e-3 * abs(value))
