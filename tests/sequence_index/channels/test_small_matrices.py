"""Linear algebra of small matrices without LAPACK, and that programs over many samples have no other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import DeepAttention, MultiIndex, SequenceIndex
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links.curve import _pseudo_inverse
from asymptotix.sequence_index.channels.mapped import MappedChannel
from asymptotix.sequence_index.channels.tools.small_matrices import (
    cholesky,
    half_log_det,
    least_squares,
    solve_lower,
    solve_positive,
)

SIZES = (1, 6, 7)  # up to six are unrolled


def positive(n: int) -> np.ndarray:
    root = np.random.default_rng(n).standard_normal((n, n + 2))
    return root @ root.T + 0.1 * np.eye(n)


@pytest.mark.parametrize("n", SIZES)
@double_precision()
def test_they_are_those_of_lapack(n):
    A = positive(n)
    L, b = np.linalg.cholesky(A), np.random.default_rng(0).standard_normal((n, 3))
    # rounding, times condition numbers of up to 1e3
    np.testing.assert_allclose(cholesky(jnp.asarray(A)), L, rtol=0, atol=1e-12)
    np.testing.assert_allclose(half_log_det(jnp.asarray(A)), 0.5 * np.linalg.slogdet(A)[1], rtol=1e-12, atol=1e-12)
    for right in (b, b[:, 0]):
        x = jnp.asarray(right)
        np.testing.assert_allclose(solve_lower(jnp.asarray(L), x), np.linalg.solve(L, right), rtol=0, atol=1e-11)
        np.testing.assert_allclose(solve_positive(jnp.asarray(A), x), np.linalg.solve(A, right), rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", SIZES)
@double_precision()
def test_least_squares_of_nearly_singular_matrices_keep_their_digits(n):
    A = np.random.default_rng(n).standard_normal((n + 2, n))
    A[:, -1] = A[:, 0] + 1e-9 * A[:, -1] if n > 1 else A[:, -1]  # its square would keep nothing of the difference
    x, least = least_squares(jnp.asarray(A), jnp.asarray(A.sum(1)))
    np.testing.assert_allclose(x, 1.0, atol=1e-5)
    np.testing.assert_allclose(least, abs(np.diag(np.linalg.qr(A)[1])).min(), rtol=1e-5)


@pytest.mark.parametrize("n", SIZES)
@double_precision()
def test_they_have_derivatives(n):
    """Of log det A its inverse; of A^-1 b along a symmetric change D of A, -A^-1 D A^-1 b."""
    A, b = positive(n), np.random.default_rng(1).standard_normal(n)
    np.testing.assert_allclose(
        jax.grad(lambda A: half_log_det(A + A.T))(jnp.asarray(0.5 * A)), np.linalg.inv(A), rtol=1e-9, atol=1e-10
    )
    # Rounding times squares of the condition number, up to 1e6 here; a wrong term would be of order one.
    D = positive(n) @ positive(n)
    D = D + D.T
    change = jax.jvp(lambda A: solve_positive(A, jnp.asarray(b)), (jnp.asarray(A),), (jnp.asarray(D),))[1]
    expected = -np.linalg.solve(A, D @ np.linalg.solve(A, b))
    np.testing.assert_allclose(change, expected, rtol=1e-8, atol=1e-8 * abs(expected).max())


@pytest.mark.parametrize("n", SIZES)
@double_precision()
def test_singular_matrices_have_a_root(n):
    A = np.zeros((n, n))
    A[:1, :1] = 4.0
    L = np.asarray(cholesky(jnp.asarray(A)))
    np.testing.assert_allclose(L @ L.T, A, rtol=0, atol=1e-15)
    assert n == 1 or half_log_det(jnp.asarray(A)) < -300


@double_precision()
def test_the_pseudo_inverse_of_two_rows_is_that_of_numpy():
    rng = np.random.default_rng(0)
    matrices = [A + A.T for A in rng.standard_normal((50, 2, 2))]
    matrices += [np.outer(v, v) for v in rng.standard_normal((20, 2))]  # singular, but for rounding
    matrices += [np.zeros((2, 2)), -3 * np.eye(2), np.diag([1.0, 1e-6]), np.diag([0.0, 2.0])]
    for H in matrices:
        expected = np.linalg.pinv(H, rcond=1e-10, hermitian=True)
        # The small eigenvalue is a difference: rounding times the condition number.
        size = abs(expected).max() + 1
        np.testing.assert_allclose(_pseudo_inverse(jnp.asarray(H)), expected, rtol=0, atol=1e-14 * size**2)


def paraboloid(z):
    return z[0] ** 2 + z[1] ** 2 + z[2]


MODELS = {
    "heads": lambda: DeepAttention(1, 2, heads=3),
    "rank two": lambda: DeepAttention(1, 2, rank=2),
    "rank two of three tokens": lambda: DeepAttention(1, 3, rank=2),
    "untied": lambda: DeepAttention(1, 2, tied=False),
    "three layers": lambda: DeepAttention(3, 2),
    "affine": lambda: MultiIndex(lambda z: 2 * z[:2] + z[2], 3),
    "affine with noise": lambda: MultiIndex(lambda z: z + z.sum(), 8, noise=0.1),
    "curve": lambda: MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2),
    "fibre": lambda: MultiIndex(paraboloid, 3),
    "fibre with noise": lambda: MultiIndex(paraboloid, 3, noise=0.1),
    "roots": lambda: MultiIndex(lambda z: z * z[::-1] + z, 2),
    "lines": lambda: MultiIndex(lambda z: jnp.sign(z).sum(), 3),
    "plane": lambda: MultiIndex(lambda z: jnp.sign(z[0] * z[1]), 2),
    "cubature": lambda: MultiIndex(lambda z: z[0] * z[1], 2, noise=0.1),
    "five tokens": lambda: SequenceIndex(lambda Z: jnp.tanh(Z).sum(1) ** 2, 2, 5, noise=0.1),
}


FIRST, *OTHERS = MODELS


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
@double_precision()
def test_programs_over_samples_do_not_call_lapack(name):
    """Two such calls at once wait for each other on two cores: heads of one layer hung within a minute."""
    channel = channel_of(MODELS[name]())
    assert isinstance(channel, MappedChannel)
    n = channel.size
    y = channel.observe(np.random.default_rng(0).standard_normal((4, channel.indices, channel.tokens)))
    samples = np.asarray(y, float).reshape(4, -1), np.zeros((4, n)), np.broadcast_to(np.eye(n), (4, n, n))
    program = jax.jit(channel.program(channel.draws, 0))
    assert "lapack" not in program.lower(*samples, channel.keys(np.arange(4), 0)).as_text()
