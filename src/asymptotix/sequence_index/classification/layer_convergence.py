"""Order in which the layers of a network converge: similarities to the last iterate, and a test on several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from ...numerics import checks

#: Levels of the similarity whose times of passage are compared.
LEVELS = (0.9, 0.95)
#: Names of two statistics: the time to half of a layer's own way, and the area above the whole curve.
HALF, AREA = "half", "area"


def similarity(ways: np.ndarray) -> np.ndarray:
    """Return Tr(K_t K_*) / (|K_t|_F |K_*|_F), (..., steps), for weights w = ``ways`` (..., steps, rows, columns).

    K_t is w w^T at step t, and K_* at the last step. The code published with Troiani et al., arXiv:2502.00901, computes
    this for Fig. 3 right, with w (P, D); with the denominator printed there it is not one at the last step.

    K does not change if w is multiplied by an orthogonal matrix from the right. The scores of attention depend on
    w^T w, which does not change if w is multiplied by an orthogonal matrix from the left. The similarity of w^T w is
    this function of the transposed w.
    """
    ways = np.asarray(ways)
    found = np.empty(ways.shape[:-2])
    for place in np.ndindex(ways.shape[:-3]):  # one run at a time, because products need more memory than weights
        found[place] = _similarity_of_run(ways[place].astype(float))
    return found


def _similarity_of_run(w: np.ndarray) -> np.ndarray:
    """Return the similarity (steps,) of w (steps, rows, columns), from w w^T or w^T w, whichever is smaller.

    Both products have the same norm.
    """
    steps, rows, columns = w.shape
    if rows <= columns:
        grams = (w @ w.swapaxes(-1, -2)).reshape(steps, -1)
        traces = grams @ grams[-1]
    else:
        transposed = w.swapaxes(-1, -2)
        grams = (transposed @ w).reshape(steps, -1)
        traces = np.linalg.norm((transposed @ w[-1]).reshape(steps, -1), axis=-1) ** 2
    norms = np.linalg.norm(grams, axis=-1)
    return traces / (norms * norms[-1])


def passage(steps: np.ndarray, curve: np.ndarray, level: float) -> float:
    """Return the step from which a curve (T,) stays at or above a level, with linear interpolation between records.

    ``steps`` (T,) are the numbers of the recorded steps. The result is zero if the curve is never below the level, and
    infinity if it is below at the end.
    """
    below = np.flatnonzero(curve < level)
    if not len(below):
        return 0.0
    k = below[-1]
    if k == len(curve) - 1:
        return math.inf
    share = (level - curve[k]) / (curve[k + 1] - curve[k])
    return float(steps[k] + share * (steps[k + 1] - steps[k]))


def area_above(steps: np.ndarray, curve: np.ndarray) -> float:
    """Return the integral of 1 - ``curve`` (T,) over ``steps`` (T,): small for a layer that converges early."""
    return float(np.trapezoid(1 - curve, steps))


def halfway(steps: np.ndarray, curve: np.ndarray) -> float:
    """Return the step from which a curve (T,) stays at or above the mean of its first value and one.

    Unlike the passage of a fixed level, it is not early merely because a layer hardly moves.
    """
    return passage(steps, curve, 0.5 * (1 + curve[0]))


def layer_order(similarities: xr.DataArray, levels: Sequence[float] = LEVELS) -> xr.Dataset:
    """Compare the convergence times of the first and the last layer, run by run.

    Parameters
    ----------
    similarities : DataArray (seed, layer, step)
    levels : sequence of float
        Similarities in (0, 1) whose times of passage are compared, in addition to half of each layer's way and the area
        above the curves.

    Returns
    -------
    Dataset
        Along ``statistic`` ("0.9", "0.95", "half", "area"): ``time(statistic, seed, layer)`` in steps;
        ``lead(statistic, seed)``, the number of steps by which the first layer is earlier than the last; ``mean_lead``
        over the seeds and its standard error ``mean_lead_err`` (nan for one seed); ``earlier``, the number of runs in
        which the first layer is earlier; ``p_value``, the probability of a division of the runs at least as uneven if
        the two layers were alike (two-sided sign test without ties).
    """
    chosen = [checks.share("levels", level) for level in levels]
    ends = similarities.transpose("seed", "layer", "step").isel(layer=[0, -1])
    steps = ends["step"].values
    statistics = {f"{level:g}": partial(passage, level=level) for level in chosen} | {HALF: halfway, AREA: area_above}
    times = np.array([[[time(steps, curve) for curve in run] for run in ends.values] for time in statistics.values()])
    lead = times[..., 1] - times[..., 0]
    count = lead.shape[1]
    error = lead.std(axis=1, ddof=1) / math.sqrt(count) if count > 1 else np.full(len(lead), math.nan)
    return xr.Dataset(
        {
            "time": (("statistic", "seed", "layer"), times),
            "lead": (("statistic", "seed"), lead),
            "mean_lead": ("statistic", lead.mean(axis=1)),
            "mean_lead_err": ("statistic", error),
            "earlier": ("statistic", (lead > 0).sum(axis=1)),
            "p_value": ("statistic", [sign_test(int((row > 0).sum()), int((row < 0).sum())) for row in lead]),
        },
        coords={
            "statistic": list(statistics),
            "seed": ends["seed"],
            "layer": ends["layer"],
        },
    )


def sign_test(more: int, less: int) -> float:
    """Return the probability that ``more`` + ``less`` fair coins divide at least as unevenly as more to less."""
    count = more + less
    tail = sum(math.comb(count, k) for k in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**count)
