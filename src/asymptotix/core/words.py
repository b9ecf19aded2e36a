"""Numbers in words."""

from __future__ import annotations

import math


def format_number(value: float, error: float = math.nan) -> str:
    """The value to the last digit that its numerical error leaves, with that error if there is one.

    >>> format_number(0.712345, 0.00123), format_number(0.712345), format_number(0.5, 0.0)
    ('0.7123 ± 0.0012', '0.712345', '0.5')
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:.6g}"
    decimals = max(1 - math.floor(math.log10(error)), 0)
    if decimals > 9:
        return f"{value:.9g} ± {error:.1e}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
