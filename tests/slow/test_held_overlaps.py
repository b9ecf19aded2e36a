"""Overlaps that are held, at the cost of deep attention: one layer against the overlap of the other."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, solve
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution

pytestmark = pytest.mark.slow
TWO = BayesOptimal(DeepAttention(layers=2, tokens=2))


@pytest.fixture(scope="module")
def first_layer() -> dict[float, tuple[float, float]]:
    """Overlap of layer 1 at alpha = 1, with its error, by the overlap at which layer 2 is held."""
    held = (0.9, 0.97, 0.985, 0.99, 0.995, 0.999)
    found = [solve(TWO, alpha=1.0, fixed={1: q}, tolerance=3e-3, progress=False) for q in held]
    assert all(result.ok for result in found)
    return {
        q: (result.overlap.values[0, 0], result.overlap_err.values[0, 0]) for q, result in zip(held, found, strict=True)
    }


def test_first_layer_grows_with_the_second(first_layer):
    # What a prototype found, which said itself that it had not fully converged: its start was above.
    rough = {0.9: 0.001, 0.97: 0.16, 0.985: 0.40, 0.99: 0.53, 0.995: 0.70, 0.999: 0.91}
    for q, (found, _) in first_layer.items():
        assert abs(found - rough[q]) < 0.03, q
    overlaps = [found for found, _ in first_layer.values()]
    assert (np.diff(overlaps) > 0).all()


@pytest.mark.parametrize("q", [0.97, 0.99, 0.999])
def test_first_layer_is_a_fixed_point_on_other_nodes(first_layer, q):
    found, error = first_layer[q]
    average = StateEvolution(TWO.theory.channel, seed=50).nodes.block(0)
    hat = average(np.diag([1 - found, 1 - q])).second_moment[:, 0, 0]
    image = hat / (1 + hat)
    # One step contracts the distance to the fixed point: to three of both errors.
    assert abs(image.mean() - found) < 3 * np.hypot(error, image.std(ddof=1) / np.sqrt(len(image))) + 1e-4


@pytest.mark.parametrize("alpha", [0.8, 0.9])
def test_held_at_the_free_solution_it_gives_the_rest_back(alpha):
    free = solve(TWO, alpha=alpha, tolerance=3e-3, progress=False)
    for index in (0, 1):
        q = free.overlap.values[index, index]
        found = solve(TWO, alpha=alpha, fixed={index: q}, tolerance=3e-3, progress=False)
        # The other overlap is the more certain for knowing this one; its error is that of the free solution.
        assert (abs(found.overlap - free.overlap) <= 3 * free.overlap_err + 1e-4).all(), index
        assert abs(found.free_entropy - free.free_entropy) < 4 * free.free_entropy_err + 1e-3


@pytest.mark.full
def test_two_of_three_layers_held_at_zero():
    problem = BayesOptimal(DeepAttention(layers=3, tokens=2))
    found = solve(problem, alpha=[0.15, 0.3, 0.6], fixed={0: 0.0, 1: 0.0}, tolerance=1e-2, progress=False)
    q = np.einsum("aii->ai", found.overlap)
    assert not q[:, :2].any()
    assert q[0, 2] == 0  # layer 3 is learned from 0.207 on
    assert 0 < q[1, 2] < q[2, 2] < 1
    assert (np.diff(found.test_error) < 0).all()
