import numpy as np
import pytest
from scipy.stats import qmc

from asymptotix.numerics.sobol import BITS, MOST_COORDINATES, sobol_block


@pytest.mark.parametrize("dim", [1, 2, 10, MOST_COORDINATES])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_points_are_those_of_scipy(dim, count):
    sequence = qmc.Sobol(dim, scramble=True, bits=BITS, rng=np.random.default_rng([3, 5]))
    for number in range(9):
        np.testing.assert_array_equal(sobol_block(count, dim, (3, 5), number), sequence.random(count))
