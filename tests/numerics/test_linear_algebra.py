import numpy as np
import pytest

from asymptotix.numerics.linear_algebra import (
    from_logit,
    mixed_rows,
    psd_project,
    psd_sqrt,
    symmetric_basis,
    symmetrise,
    to_logit,
)


@pytest.fixture
def stack():
    a = np.random.default_rng(0).standard_normal((5, 4, 4))
    return a @ np.swapaxes(a, -1, -2) + 0.1 * np.eye(4)


def test_root_squares_back(stack):
    root = psd_sqrt(stack)
    assert np.array_equal(root, np.swapaxes(root, -1, -2))
    assert root @ root == pytest.approx(stack, abs=1e-12)
    assert (np.linalg.eigvalsh(root) > 0).all()


def test_root_of_a_singular_matrix_ignores_rounding():
    v = np.array([1.0, 2.0, -1.0])
    singular = np.outer(v, v)
    # Eigenvalues of 1e-16 become 1e-8 in the root, not in its square.
    assert psd_sqrt(singular) @ psd_sqrt(singular) == pytest.approx(singular, abs=1e-13)
    assert np.array_equal(psd_sqrt(np.zeros((2, 2))), np.zeros((2, 2)))


def test_project_clips_eigenvalues_and_keeps_psd(stack):
    indefinite = symmetrise(np.random.default_rng(1).standard_normal((6, 6)))
    values, vectors = np.linalg.eigh(indefinite)
    expected = (vectors * np.maximum(values, 0.3)) @ vectors.T
    assert psd_project(indefinite, floor=0.3) == pytest.approx(expected, abs=1e-13)
    assert np.linalg.eigvalsh(psd_project(indefinite)).min() > -1e-13
    assert psd_project(stack) == pytest.approx(stack, abs=1e-12)
    with pytest.raises(ValueError, match="floor must be non-negative, got -1"):
        psd_project(indefinite, floor=-1)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"overlap must be positive.*smallest eigenvalue -1"):
        psd_sqrt(np.diag([2.0, -1.0]), name="overlap")
    with pytest.raises(np.linalg.LinAlgError, match="overlap must be symmetric"):
        psd_sqrt(np.array([[1.0, 0.5], [0.0, 1.0]]), name="overlap")
    with pytest.raises(ValueError, match="overlap must be square"):
        psd_sqrt(np.ones((2, 3)), name="overlap")
    with pytest.raises(np.linalg.LinAlgError, match="overlap must be finite"):
        psd_sqrt(np.full((2, 2), np.nan), name="overlap")


@pytest.mark.parametrize("matrix", [np.diag([2.0, 0.5]), np.array([[2.0, 0.3], [0.3, 0.5]])])
def test_mixed_rows_are_products(matrix):
    Z = np.random.default_rng(0).normal(size=(5, 2, 3))
    np.testing.assert_allclose(mixed_rows(matrix, Z), matrix @ Z, rtol=1e-14)


def test_logit_round_trip_is_accurate_at_both_ends():
    tiny = 10.0 ** -np.arange(1, 300, 7.0)
    near_one = to_logit(1.0 - tiny, tiny)
    q, rest = from_logit(near_one)
    # A relative error in 1-q is the absolute error of its logit, up to 700 in size: 700 * 2.2e-16 = 1.5e-13.
    assert rest == pytest.approx(tiny, rel=1e-12, abs=0)
    assert q == pytest.approx(1.0 - tiny, rel=1e-15)
    q, rest = from_logit(to_logit(tiny, 1.0 - tiny))
    assert q == pytest.approx(tiny, rel=1e-12, abs=0)


def test_logit_limits_and_refusals():
    assert to_logit([0.0, 0.5, 1.0]).tolist() == [-np.inf, 0.0, np.inf]
    q, rest = from_logit([-np.inf, -1e4, 0.0, 1e4, np.inf])
    assert q.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert rest.tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        to_logit(1.2)
    with pytest.raises(ValueError, match="complement must equal 1 - q"):
        to_logit(0.5, 0.4)
    with pytest.raises(ValueError, match="must lie in"):
        to_logit(np.nan)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_symmetric_basis_is_orthonormal_and_complete(size):
    basis = symmetric_basis(size)
    assert basis.shape == (size * (size + 1) // 2, size, size)
    assert np.einsum("aij,bij->ab", basis, basis) == pytest.approx(np.eye(len(basis)), abs=1e-15)
    matrix = symmetrise(np.random.default_rng(3).standard_normal((size, size)))
    coordinates = np.einsum("aij,ij->a", basis, matrix)
    assert np.einsum("a,aij->ij", coordinates, basis) == pytest.approx(matrix, abs=1e-14)


def test_what_is_left_of_a_difference_may_have_the_rounding_of_its_terms():
    left = np.diag([1e-20, -1e-22])  # I - V, where V is I up to rounding
    with pytest.raises(np.linalg.LinAlgError, match="semi-definite"):
        psd_sqrt(left)
    np.testing.assert_array_equal(psd_sqrt(left, scale=1.0), np.diag([1e-10, 0.0]))
