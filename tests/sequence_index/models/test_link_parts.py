"""Links that are several: which index rows belong together, what their parts are, and their thresholds put together."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.sequence_index.evolution.thresholds.separate import FoundThresholds, joined
from asymptotix.sequence_index.evolution.thresholds.threshold import NEVER, StaircaseStep, Threshold
from asymptotix.sequence_index.models.link import MultiIndex, SequenceIndex
from asymptotix.sequence_index.models.link_parts import link_parts


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (MultiIndex(lambda z: z**2, 3), [(0,), (1,), (2,)]),
        (MultiIndex(lambda z: jnp.stack([z[0] * z[3], z[1] + z[2]]), 4), [(0, 3), (1, 2)]),
        (MultiIndex(lambda z: jnp.stack([z[0] * z[1], z[1] * z[2]]), 3), [(0, 1, 2)]),
        (MultiIndex(lambda z: z[0] * z[1] + z[2] * z[3], 4), [(0, 1, 2, 3)]),
        (SequenceIndex(lambda Z: jnp.cos(Z), 2, 3), [(0,), (1,)]),
        # seen only where an index is large
        (MultiIndex(lambda z: jnp.stack([z[0] * (abs(z[1]) > 4), z[1]]), 2), [(0, 1)]),
        # a row that is not seen
        (MultiIndex(lambda z: jnp.stack([z[0], z[2] ** 2]), 3), [(0,), (2,)]),
        (MultiIndex(lambda z: z[2] ** 2, 3), [(2,)]),
    ],
)
def test_rows_that_share_an_output_stay_together(model, rows) -> None:
    assert [part.rows for part in link_parts(model)] == rows


def test_a_part_is_the_link_on_its_rows() -> None:
    model = MultiIndex(lambda z: jnp.stack([z[0] * z[2], z[1] ** 2, z[0] - z[2]]), 3, noise=0.1)
    Z = np.random.default_rng(0).standard_normal((3, 1)).astype(np.float32)
    first, second = link_parts(model)
    outputs = np.asarray(model.evaluate(Z))
    np.testing.assert_array_equal(first.model.evaluate(Z[[0, 2]]), outputs[[0, 2]])
    np.testing.assert_array_equal(second.model.evaluate(Z[[1]]), outputs[[1]])
    assert first.model.noise == second.model.noise == 0.1


def found(alpha: float, exact: Threshold, informed: float) -> FoundThresholds:
    threshold = Threshold(alpha, 0.01)
    return FoundThresholds([StaircaseStep(threshold, np.eye(1))], [threshold], exact, informed)


def test_steps_are_ordered_and_equal_ones_are_one() -> None:
    parts = [found(alpha, Threshold(2 * alpha, 0.0), alpha) for alpha in (2.0, 1.0, 2.0)]
    whole = joined([(1,), (0,), (2,)], parts, 4)
    assert [step.threshold.alpha for step in whole.steps] == [1.0, 2.0]
    np.testing.assert_allclose(whole.steps[1].direction, np.diag([0.0, 1.0, 1.0, 0.0]) / np.sqrt(2))
    assert [one.alpha for one in whole.weak] == [1.0, 2.0, 2.0, np.inf]
    assert whole.exact == Threshold(4.0, 0.0)
    assert whole.informed == 2.0


def test_what_is_never_recovered_decides() -> None:
    whole = joined([(0,), (1,)], [found(1.0, NEVER, np.inf), found(2.0, Threshold(3.0, 0.0), 1.0)], 2)
    assert whole.exact == NEVER
    assert whole.informed == np.inf
