"""Which layer of a network comes to rest first: similarities to the last iterate, and a test on several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from ...numerics import checks

#: Similarities whose passages are compared.
LEVELS = (0.9, 0.95)
#: Names of the statistics that look at half of a layer's own way, and at the whole curve.
HALF, AREA = "half", "area"


def similarity(ways: np.ndarray) -> np.ndarray:
    """Tr(K_t K_*) / (|K_t|_F |K_*|_F) along the last axis but two of w (..., steps, rows, columns), K = w w^T.

    K_* is that of the last step. This is what the code published with Troiani et al., arXiv:2502.00901, computes for
    Fig. 3 right, with w (P, D); the denominator printed there is not one at the last step.

    K does not change if w is multiplied by an orthogonal matrix from the right; the scores of attention depend on
    w^T w, which does not change if w is multiplied by one from the left. The similarity of that is the same function
    of the transposed w.
    """
    ways = np.asarray(ways)
    found = np.empty(ways.shape[:-2])
    for place in np.ndindex(ways.shape[:-3]):  # one run at a time: the products are larger than the weights
        found[place] = _similarity_of_run(ways[place].astype(float))
    return found


def _similarity_of_run(w: np.ndarray) -> np.ndarray:
    """Of w (steps, rows, columns), from the smaller of the products w w^T and w^T w, whose norms are equal."""
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
    """The step from which on a curve stays at a level or above, between records on a straight line.

    Zero where it is never below; infinity where it is below in the end.
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
    """Integral of 1 - similarity over the steps: how long a layer is away from its end, times how far."""
    return float(np.trapezoid(1 - curve, steps))


def halfway(steps: np.ndarray, curve: np.ndarray) -> float:
    """The step from which on at most half of the way from the first similarity to one is left.

    Unlike the passage of a level, it does not come first merely because a layer hardly moves.
    """
    return passage(steps, curve, 0.5 * (1 + curve[0]))


def layer_order(similarities: xr.DataArray, levels: Sequence[float] = LEVELS) -> xr.Dataset:
    """Compare when the first and the last layer converge, run by run.

    Parameters
    ----------
    similarities : DataArray (seed, layer, step)
    levels : sequence of float
        Similarities in (0, 1) whose passages are compared, beside half of each layer's way and the area above the
        curves.

    Returns
    -------
    Dataset
        Along ``statistic`` ("0.9", "0.95", "half", "area"): ``time(statistic, seed, layer)`` in steps, and
        ``lead(statistic, seed)``, by how much the first layer is earlier than the last; ``mean_lead`` over the seeds
        and its standard error ``mean_lead_err`` (nan for one seed); ``earlier``, the number of runs in which the first
        layer is, and ``p_value``, the probability of so uneven a division of the runs, or a more uneven one, if the
        two layers were alike (sign test, two-sided, ties left out).
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
    """Probability that fair coins divide at least as unevenly as ``more`` to ``less``."""
    count = more + less
    tail = sum(math.comb(count, k) for k in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**count)
