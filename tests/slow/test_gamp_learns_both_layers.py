"""Message passing in stages learns both layers without side information."""

import pytest

from asymptotix import GAMP, BayesOptimal, DeepAttention, simulate

pytestmark = pytest.mark.slow


def test_stages_learn_layer_1():
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2))
    runs = simulate(problem, GAMP(iterations=40), alpha=1.2, dim=500, seeds=3, progress=False)
    found = runs.overlap.values.reshape(3, 2, 2)[:, 0, 0]
    assert (found > 0.9).all(), found  # not learned would be of order 1/D
