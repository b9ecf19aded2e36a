"""Known directions beside others: what samples show of the others depends on the known ones, to a small angle."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from invariance.known.solved import solved


@pytest.mark.full
def test_rotated_indices_of_a_link_whose_second_index_shows_in_one_sample_of_a_hundred():
    """At alpha 1.14 one direction is known and nothing else is learned: the other one has its threshold near 2."""
    (c, s), R = (0.338579044219006, 0.940937952691751), np.array([[-1.0, 0.0], [0.0, 1.0]])
    R = R @ np.array([[c, s], [-s, c]])

    def link(z):
        u = R @ z
        return jnp.where(jnp.abs(u[0]) > 2.61, 1.0, 0.0) + jnp.exp(-1.25 * (u[1] + 0.31) ** 2)

    found = asx.solve(asx.BayesOptimal(asx.MultiIndex(link, 2)), alpha=1.14, progress=False)
    np.testing.assert_allclose(R @ found.overlap.values @ R.T, np.diag([0.0, 1.0]), atol=2e-5)


@pytest.mark.slow
def test_directions_that_are_exactly_recovered_are_those_of_the_link():
    found = solved(lambda Z: (Z[0] - 0.639 * Z[1]) ** 2, [2.0], indices=2)
    direction = np.array([1.0, -0.639]) / np.hypot(1.0, 0.639)
    np.testing.assert_allclose(found.overlap.values[0], np.outer(direction, direction), atol=1e-9)


def test_a_sign_beside_a_known_index_is_a_perceptron():
    """At alpha = 2.18 the known index was off by an angle of 1e-3, and the overlap of the other one was 0.926."""
    alphas = [2.1, 2.18]
    both = solved(lambda Z: jnp.sign(Z[0]) + jnp.where(Z[1] > 0, Z[1], -0.26 * Z[1]), alphas, indices=2)
    one = solved(lambda Z: jnp.sign(Z[0]), alphas)
    np.testing.assert_allclose(both.overlap.values[:, 1, 1], 1.0, atol=2e-6)
    np.testing.assert_allclose(both.overlap.values[:, 0, 1], 0.0, atol=1e-5)  # a hundredth of sqrt(1-q)
    error = np.hypot(both.overlap_err.values[:, 0, 0], one.overlap_err.values[:, 0, 0])
    assert (abs(both.overlap.values[:, 0, 0] - one.overlap.values[:, 0, 0]) <= 3 * error).all()
