"""Exchanges and changes of signs of index rows that outputs do not show."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex
from asymptotix.numerics.linear_algebra import symmetric_basis
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.row_symmetry import RowSymmetry, _closed
from asymptotix.sequence_index.evolution.coordinates import Coordinates


def symmetry_of(link, indices: int) -> RowSymmetry:
    return channel_of(MultiIndex(link, indices)).symmetry


@pytest.mark.parametrize(
    ("link", "indices", "count"),
    [
        (lambda z: z.max(), 4, 24),  # all permutations
        (lambda z: abs(z).max(), 4, 384),  # and all signs
        (lambda z: z[0] ** 2 + 2 * z[1] ** 2 + 3 * z[2] ** 2, 3, 8),  # signs
        # Of each product: exchange, both signs; of both: exchange; of the sum its sign, which the output shows.
        (lambda z: z[0] * z[1] + z[2] * z[3], 4, 64),
        (lambda z: z[0] + z[1] ** 2 + 0.3 * z[2] ** 3, 3, 2),  # the sign of the second
    ],
)
def test_number_of_symmetries(link, indices, count):
    assert len(symmetry_of(link, indices).elements) == count


def test_one_sign_for_all_says_nothing_of_overlaps():
    odd = symmetry_of(lambda z: z[0] + 2 * z[1] ** 3 + jnp.tanh(z[0] + z[2]), 3)
    assert len(odd.elements) == 2
    assert odd.trivial


def test_draws_anew_are_left_as_they_are():
    assert symmetry_of(lambda z: jnp.stack([(z**2).sum(), (z**4).sum()]), 4).trivial


def test_an_overlap_has_part_of_the_symmetry():
    permutations = symmetry_of(lambda z: z.max(), 4)
    assert len(permutations.of(np.diag([0.5, 0.5, 0.2, 0.2])).elements) == 4
    assert len(permutations.of(0.3 * np.eye(4) + 0.1).elements) == 24


def test_what_is_averaged_has_the_symmetry_and_what_has_it_stays():
    permutations = symmetry_of(lambda z: z.max(), 4)
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((3, 4, 4))
    averaged = permutations.averaged(matrices + np.swapaxes(matrices, 1, 2))
    assert all(len(permutations.of(matrix).elements) == 24 for matrix in averaged)
    np.testing.assert_allclose(permutations.averaged(averaged), averaged, atol=1e-12)


def test_overlaps_have_as_many_coordinates_as_the_symmetry_leaves():
    """Exchangeable indices: the overlap of their mean, and one of all that is left."""
    permutations = symmetry_of(lambda z: z.max(), 4)
    mean = np.full((4, 4), 0.25)
    Q = 0.9 * mean + 0.3 * (np.eye(4) - mean)
    space, x = Coordinates.of_overlap(Q, np.eye(4) - Q, False, symmetry=permutations)
    assert len(x) == 2
    np.testing.assert_allclose(space.overlap(x)[0], Q, atol=1e-12)
    general, y = Coordinates.of_overlap(Q, np.eye(4) - Q, False)
    assert len(y) == 10
    np.testing.assert_allclose(np.sort(space.logits(x)), np.sort(general.logits(y)), atol=1e-10)


def test_a_turned_subspace_keeps_the_overlap():
    """The basis of what is symmetric is another one in every frame."""
    signs = RowSymmetry(np.stack([np.eye(3), np.diag([1.0, 1.0, -1.0])]))
    Q = np.diag([0.5, 0.2, 0.0])
    space, x = Coordinates.of_overlap(Q, np.eye(3) - Q, False, symmetry=signs)
    angle = 0.3
    frame = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)], [0.0, 0.0]])
    turned, y = space.turned(x, frame)
    np.testing.assert_allclose(turned.overlap(y)[0], Q, atol=1e-12)  # the same span: nothing moves


def test_action_on_symmetric_matrices_is_orthogonal():
    signed = symmetry_of(lambda z: abs(z).max(), 3)
    acting = signed.on_matrices(np.eye(3))
    unit = np.eye(len(symmetric_basis(3)))
    np.testing.assert_allclose(acting @ np.swapaxes(acting, 1, 2), np.broadcast_to(unit, acting.shape), atol=1e-12)
    # Multiples of the unit matrix are all that has it.
    assert np.linalg.matrix_rank(acting.mean(0), tol=1e-9) == 1


def test_what_an_output_shows_by_its_sign_is_not_unseen():
    product = symmetry_of(lambda z: z[0] * z[1], 2)
    assert len(product.elements) == 8
    unseen = product.unseen_by(lambda Z: Z[:, 0] * Z[:, 1], 1, 0)
    assert len(unseen.elements) == 4  # the exchange, both signs, and both of these


def test_moments_that_have_the_symmetry():
    """Of two tokens: products between rows vanish, those of every row with itself are the same."""
    signed = symmetry_of(lambda z: abs(z).max(), 3)
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3, 2, 3, 2))
    mean, square = signed.averaged_moments(first, second)
    np.testing.assert_allclose(mean, 0, atol=1e-12)
    own = np.einsum("npmpk->nmk", second) / 3
    np.testing.assert_allclose(square, np.einsum("pq,nmk->npmqk", np.eye(3), own), atol=1e-12)
    turned = signed.elements[7]
    once = np.einsum("ip,npmqk,jq->nimjk", turned, second, turned)
    np.testing.assert_allclose(signed.averaged_moments(first, once)[1], square, atol=1e-12)


@pytest.mark.parametrize(
    "link",
    [
        lambda z: abs(z[0] * z[1]) + 10.0 * (z[0] > 2.3),  # one in a hundred shows that they are not the same
        lambda z: abs(z[0] * z[1]) + 3 * jnp.maximum(z[0] - 2, 0.0),
        lambda z: abs(z[0] * z[1]) + 3 * jnp.maximum(z[0] - 3.5, 0.0),
    ],
)
def test_what_is_rarely_seen_is_seen(link):
    """The sign of the second index, and nothing of the first."""
    found = channel_of(MultiIndex(link, 2, 0.1)).symmetry
    np.testing.assert_allclose(sorted(np.diag(h).tolist() for h in found.elements), [[1, -1], [1, 1]])


def test_what_is_no_group_is_not_believed():
    signs = np.stack([np.diag(d) for d in ([1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0])])
    assert _closed(signs)
    assert not _closed(signs[:3])
    assert _closed(signs[:1])
