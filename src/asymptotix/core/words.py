"""Numbers, and the sizes of grids, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def format_number(value: float, error: float = math.nan) -> str:
    """Format a value with its numerical error, both rounded to the second digit of the error.

    Without an error, or with an error of zero, the value has six digits:

    >>> format_number(0.712345, 0.00123), format_number(0.712345), format_number(0.5, 0.0)
    ('0.7123 ± 0.0012', '0.712345', '0.5')
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = max(1 - math.floor(math.log10(error)), 0)
    if decimals > 9:
        return f"{value:.9g} ± {error:.1e}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def counted(lengths: Mapping[Any, int]) -> str:
    """Return the number of values of every dimension of a grid as text, from dimension -> length.

    >>> counted({"alpha": 3, "dim": 1}), counted({})
    ('3 values of alpha, 1 value of dim', 'one point')
    """
    words = (f"{length} value{'s' * (length != 1)} of {name}" for name, length in lengths.items())
    return ", ".join(words) or "one point"
