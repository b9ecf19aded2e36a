"""The stored kernels of pairs of paths, against sums written out."""

import numpy as np
import pytest

from asymptotix.attention_paths.theory import energy
from asymptotix.attention_paths.theory.action import Action, required_bytes
from asymptotix.attention_paths.theory.order_parameter import minimise
from asymptotix.attention_paths.theory.path_table import LARGE_BYTES, SMALL_BYTES, PathTable, table_bytes


def test_kernel_and_slope_are_the_sums():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((3, 5, 7))
    half = rng.standard_normal((3, 4))
    U, root = half @ half.T, rng.standard_normal((7, 7))
    A, table = root @ root.T, PathTable(features)
    K = np.einsum("ab,akm,bkn->mn", U, features, features)
    np.testing.assert_allclose(np.tril(table.lower_kernel(U)), np.tril(K), rtol=1e-13, atol=1e-13)
    # What lies above the diagonal is not read.
    lower = np.asfortranarray(np.tril(A) + np.triu(np.full((7, 7), np.nan), 1))
    D = np.einsum("mn,akm,bkn->ab", A, features, features)
    np.testing.assert_allclose(table.slope(lower), D, rtol=1e-12)


def test_a_table_is_stored_where_it_saves_work_and_memory_holds_it():
    # 16 paths on 600 sequences of images: 136 pairs of paths, 180,300 of examples.
    assert table_bytes(600, 16, 192) == 8 * 136 * 180_300
    assert SMALL_BYTES < table_bytes(600, 27, 192) <= LARGE_BYTES
    assert table_bytes(600, 64, 192) == 0
    assert table_bytes(600, 16, 33) == 0  # as many features as paths: making K from them is as cheap
    assert table_bytes(100, 16, 33) > 0
    assert required_bytes(600, 16, 192) > table_bytes(600, 16, 192)


@pytest.mark.parametrize("heads", [(6,), (2, 3), (2, 2, 2)])
def test_the_minimum_is_that_without_a_table(heads, monkeypatch):
    rng = np.random.default_rng(len(heads))
    xi = rng.standard_normal((30, int(np.prod(heads)), 20)) + rng.standard_normal((30, 1, 20))
    labels = np.sign(xi[:, 0, 0] + xi[:, 1, 1])
    stored = minimise(Action(xi, labels, heads, 0.3, width=8.0))
    monkeypatch.setattr(energy, "table_bytes", lambda *_: 0)
    other = minimise(Action(xi, labels, heads, 0.3, width=8.0))
    assert stored.converged
    assert other.converged
    # Both ends are within 1e-8 of zero gradient, and say how far from the minimum that is.
    assert (abs(stored.U - other.U) <= stored.error + other.error).all()
