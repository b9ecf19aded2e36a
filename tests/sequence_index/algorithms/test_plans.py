"""What message passing plans before its first iteration."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex
from asymptotix.sequence_index.algorithms.schedule import PlanNodes, learning_stages
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution


def test_an_even_link_starts_from_a_spectrum_whatever_rounding_says_at_its_extrema() -> None:
    """Of |z| exp(-|z|/2), where two roots on each side meet, at |z| = 2: E|g|^2 = 6e-9 of rounding is no mean."""
    evolution = StateEvolution(channel_of(MultiIndex(lambda z: abs(z[0]) * jnp.exp(-0.5 * abs(z[0])), 1)))
    first, *others = learning_stages(PlanNodes(evolution, 2**8), 1.5, iterations=20, damping=1.0)
    assert not others
    assert first.frame.shape == (1, 1)
    np.testing.assert_allclose(first.growth, 1.5 * evolution.growth(evolution.nothing(0.0)).rate, rtol=1e-9)
    assert 0 < first.start.overlap.item() < 1
    assert first.iterations > 1


@pytest.mark.slow
def test_what_cannot_be_learned_is_tried_for_a_few_iterations_only() -> None:
    """Three equivalent indices at a quarter of their threshold: overlaps of 1e-4, the scatter of nodes, are left."""
    evolution = StateEvolution.of(channel_of(MultiIndex(lambda z: z[0] * z[1] * z[2], 3, 0.1)))
    (stage,) = learning_stages(PlanNodes(evolution, 2**8), 0.8, iterations=60, damping=1.0)
    assert stage.growth < 0.5
    assert 1 < stage.iterations < 10
