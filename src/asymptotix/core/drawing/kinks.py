"""Points that thresholds add to a theory's curve, so that kinks are drawn at the thresholds and not at grid points.

No value is invented. Below its first threshold an observable keeps the value for nothing learned, and above exact
recovery the value for everything learned. Where the grid shows such a constant, it holds up to the threshold itself.
The curve is otherwise unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Largest variation of an observable that counts as constant, as a share of its variation on the whole grid. Larger:
#: a visible variation counts as constant.
CONSTANT = 0.01


def with_kinks(
    x: np.ndarray, y: np.ndarray, *, from_here: Sequence[float], until_there: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, y, added x) of a curve with points added at thresholds.

    Parameters
    ----------
    x, y
        Ascending grid of a control, and the observable there.
    from_here
        Thresholds at which something begins to be learned; the largest one below which y is constant is added.
    until_there
        Thresholds above which everything is learned; the smallest one above which y is constant is added.
    """
    finite = np.isfinite(y)
    if finite.sum() < 2:
        return x, y, np.array([])
    near = CONSTANT * float(np.ptp(y[finite]))
    added: dict[float, float] = {}
    for threshold in sorted(_inside(from_here, x), reverse=True):
        before = y[x <= threshold]
        if np.isfinite(before).all() and np.ptp(before) <= near < abs(y[finite][-1] - before[-1]):
            added[threshold] = float(before[-1])
            break
    for threshold in sorted(_inside(until_there, x)):
        after = y[x >= threshold]
        if np.isfinite(after).all() and np.ptp(after) <= near < abs(y[finite][0] - after[0]):
            added[threshold] = float(after[0])
            break
    places = np.array([place for place in added if not np.isclose(x, place, rtol=1e-9, atol=0).any()])
    together = np.concatenate([x, places])
    order = np.argsort(together, kind="stable")
    values = np.concatenate([y, [added[place] for place in places]])
    return together[order], values[order], places


def _inside(thresholds: Sequence[float], x: np.ndarray) -> list[float]:
    return [float(t) for t in thresholds if np.isfinite(t) and x[0] < t < x[-1]]
