"""Scrambled Sobol points are those of scipy, which has them from the same papers, in any block."""

import numpy as np
import pytest
from scipy.stats import qmc

from asymptotix.numerics.sobol import DIGITS, sobol_points


@pytest.mark.parametrize("dim", [1, 2, 8, 33, 64, 65, 130])  # up to the end of the table and beyond
def test_the_points_of_scipy(dim: int) -> None:
    theirs = qmc.Sobol(dim, scramble=True, bits=DIGITS, rng=np.random.default_rng([3, dim]))
    for block in range(6):
        ours = sobol_points(32, dim, (3, dim), block)
        np.testing.assert_array_equal(ours * 2.0**-DIGITS, theirs.random(32))


def test_one_point_at_a_time() -> None:
    whole = sobol_points(16, 3, (1,))
    np.testing.assert_array_equal(np.concatenate([sobol_points(1, 3, (1,), block) for block in range(16)]), whole)
