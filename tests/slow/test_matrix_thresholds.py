"""Staircases of three directions, exact recovery after a jump, and known thresholds of links through the verbs."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, thresholds
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.thresholds.exact_recovery import exact_recovery
from asymptotix.sequence_index.evolution.thresholds.staircase import staircase
from asymptotix.sequence_index.models.link import MultiIndex
from small_channels import RotatedSquares, Square

pytestmark = pytest.mark.slow

#: Standard errors come from 8 randomisations: Student's t with 7 degrees of freedom is beyond 6 once in 2000 times.
LIMIT = 6.0


def rotation3() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(3).standard_normal((3, 3)))[0]


@pytest.mark.parametrize("diagonal", [False, True], ids=["matrix", "diagonal"])
def test_three_directions_one_after_the_other(diagonal):
    # Independent directions: each s_a is seen with probability p_a, f_a = 2 p_a on every branch.
    R = np.eye(3) if diagonal else rotation3()
    evolution = StateEvolution(RotatedSquares(R, seen=[1.0, 0.7, 0.5], diagonal=diagonal))
    steps, _ = staircase(evolution, tolerance=0.05)
    assert len(steps) == 3
    for row, step, alpha in zip(R, steps, [0.5, 1 / 1.4, 1.0], strict=True):
        assert abs(step.threshold.alpha - alpha) < LIMIT * step.threshold.error + 1e-9
        assert step.threshold.error < 0.05 * alpha  # 16384 nodes of a heavy-tailed average
        # The direction is exact where rows are independent, but for the nodes: second order in their error.
        np.testing.assert_allclose(step.direction, np.outer(row, row), atol=0.1)
        np.testing.assert_allclose(np.linalg.norm(step.direction), 1.0, rtol=1e-10)


def test_exact_recovery_comes_after_the_jump():
    found = exact_recovery(StateEvolution(Square([1.0, 2.0])))
    assert abs(found.alpha - 1.128) < 3 * found.error  # the literature's value
    assert found.error < 0.01


def test_sign_of_a_product():
    found = thresholds(BayesOptimal(MultiIndex(lambda z: jnp.sign(z[0] * z[1]), 2)), tolerance=1e-2, progress=False)
    # G depends on y alone, and y on the signs: exact but for the quadrature of the posterior.
    np.testing.assert_allclose(found.weak_recovery, [np.pi**2 / 4] * 2, rtol=1e-4)
    np.testing.assert_allclose(found.direction.values[0], np.eye(2) / np.sqrt(2), atol=1e-3)
    assert found.exact_recovery.item() == np.inf  # discrete outputs


def test_product():
    found = thresholds(BayesOptimal(MultiIndex(lambda z: z[0] * z[1], 2)), tolerance=2e-2, progress=False)
    error = found.weak_recovery_err.values[0]
    assert error < 1e-3
    assert abs(found.weak_recovery.values[0] - 0.593751) < LIMIT * error  # by one-dimensional quadrature over y
