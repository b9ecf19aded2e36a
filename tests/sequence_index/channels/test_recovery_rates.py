"""Which directions are recovered last, close to full overlap."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex, SequenceIndex
from asymptotix.sequence_index.channels.choose import channel_of

TURN = np.linalg.qr(np.vander([1.0, 2.0, 3.0]))[0]


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        # one piece: the number of indices over the rank
        (MultiIndex(lambda z: z[0] * z[1] * z[2], 3), 3),
        (MultiIndex(lambda z: z[0] ** 2 + 1e-3 * z[1] ** 2 + z[2] ** 4, 3), 3),
        (MultiIndex(lambda z: z.max(), 4), 4),  # in a quarter of the points each
        (MultiIndex(lambda z: jnp.stack([z[0] * z[1], z[1] + z[2] ** 2]), 3), 1.5),
        (SequenceIndex(lambda Z: jnp.stack([Z[0].sum(), (Z[1] ** 2).sum()]), 2, 3), 1),
        # a square and what is seen of two others, mixed: these need two samples for each dimension
        (MultiIndex(lambda z: jnp.stack([z[0] ** 2 + z[1] * z[2], z[0] ** 2 - z[1] * z[2]]), 3), 2),
        # the same in rotated directions
        (MultiIndex(lambda z: jnp.stack([(TURN @ z)[0] ** 2, (TURN @ z)[1] * (TURN @ z)[2]]), 3), 2),
    ],
)
def test_the_bound_is_that_of_the_slowest_directions(model: MultiIndex | SequenceIndex, bound: float) -> None:
    channel = channel_of(model)
    assert channel.recovery_bound(np.eye(channel.indices)) == pytest.approx(bound, rel=1e-12)


def test_directions_that_are_far_behind_are_still_told_from_the_others() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]

    def powers(z):
        w = turn @ z
        products = jnp.stack([w[0] * w[1], w[2] * w[3], w[3] * w[4]])
        return jnp.stack([(products**n).sum() for n in (1, 2, 3)])

    assert channel_of(MultiIndex(powers, 5)).recovery_bound(np.eye(5)) == 2


def test_only_visible_directions_count() -> None:
    channel = channel_of(MultiIndex(lambda z: (z[0] + z[1]) ** 2 * z[2], 3))
    seen = np.array([[1, 0], [1, 0], [0, np.sqrt(2)]]) / np.sqrt(2)
    assert channel.recovery_bound(seen) == 2
