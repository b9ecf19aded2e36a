"""Overlaps of links of three indices and one output: their error bars cover what a quadrature finds."""

import warnings

import numpy as np
import pytest

import staircase_quadrature as by
from asymptotix import BayesOptimal, MultiIndex, solve
from asymptotix.core.result import ConvergenceWarning

pytestmark = pytest.mark.slow

#: One, two and three directions are learned.
ALPHAS = (0.5, 1.2, 2.2)


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.full), 0.1])
def test_overlaps_are_those_of_a_quadrature(noise: float) -> None:
    model = MultiIndex(lambda z: z[0] + z[1] ** 2 + 0.5 * z[2] ** 2, 3, noise)
    averages = by.summed([by.linear(), by.squares(), by.squares(0.5)], noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last error may be a little above the tolerance
        ds = solve(BayesOptimal(model), alpha=ALPHAS, progress=False).ds
    exact = np.array([by.evolved(averages, 0.3 * (np.arange(3) <= k), alpha, 1e-8) for k, alpha in enumerate(ALPHAS)])
    q, error = (np.einsum("aii->ai", ds[name].values) for name in ("overlap", "overlap_err"))
    assert np.all(abs(q - exact)[exact > 0] < 3 * error[exact > 0])
    assert not q[exact == 0].any()
    assert error.max() < 2e-3  # twice the tolerance
    assert np.isfinite(ds.free_entropy.values).all()
