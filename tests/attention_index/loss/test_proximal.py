"""The proximal maps against brute force, and the kernels against one another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from asymptotix.attention_index.loss.generic_loss import GenericMap
from asymptotix.attention_index.loss.proximal import (
    DISAGREEMENT,
    RowsMap,
    TwoTokenMap,
    proximal_points,
    softmax_map,
)
from asymptotix.attention_index.loss.visible_directions import logit_matrix, pair_weights, symmetric, visible_basis

SIGNAL = 1.75


def draw(tokens, n, *, m=1.3, q=1.6, seed=0):
    """Visible coordinates of target and learner with the covariance [[SIGNAL, m], [m, q]]."""
    z0, noise = np.random.default_rng(seed).normal(size=(2, n, len(visible_basis(tokens)) - 1))
    z0 *= np.sqrt(SIGNAL)
    return z0, m / SIGNAL * z0 + np.sqrt(q - m * m / SIGNAL) * noise


def objective(tokens, beta, target_beta, z0, z, Sigma):
    """The objective of one sample, written from the definition in all T x T entries."""
    B = logit_matrix(tokens)

    def softmax(b, r):
        A = np.exp(b * (B @ r).reshape(tokens, tokens))
        return A / A.sum(axis=1, keepdims=True)

    y = softmax(target_beta, z0)
    return lambda r: np.sum((r - z) ** 2) / (2 * Sigma) + np.sum((softmax(beta, r) - y) ** 2)


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_the_basis_is_orthonormal_and_blind_to_the_shift_only(tokens):
    E = visible_basis(tokens)
    assert E.shape == (tokens * (tokens + 1) // 2, tokens * (tokens + 1) // 2 - 1)
    np.testing.assert_allclose(E.T @ E, np.eye(E.shape[1]), atol=1e-14)
    shift = 1 / pair_weights(tokens)
    np.testing.assert_allclose(E.T @ shift, 0, atol=1e-14)
    h = logit_matrix(tokens) @ np.arange(1.0, E.shape[1] + 1)
    np.testing.assert_array_equal(h.reshape(tokens, tokens), h.reshape(tokens, tokens).T)
    # a shift of all entries is what the other direction does
    np.testing.assert_allclose(symmetric(tokens, (pair_weights(tokens) * shift)[:, None]), 1, atol=1e-14)


def test_two_tokens_have_the_odd_and_the_even_coordinate():
    s, t = 0.7, -0.4
    h11, h12, h21, h22 = logit_matrix(2) @ [s, t]
    assert h11 - h12 == pytest.approx(s + np.sqrt(2) * t, abs=1e-15)
    assert h22 - h21 == pytest.approx(-s + np.sqrt(2) * t, abs=1e-15)


@pytest.mark.parametrize("tokens", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("beta", "Sigma"), [(1.0, 0.1), pytest.param(1.0, 10.0, marks=pytest.mark.slow), (2.0, 3.0)])
def test_no_descent_of_scipy_ends_lower(tokens, beta, Sigma):
    """Also beyond Sigma = 1.04/beta^2, where the objective is not convex."""
    z0, z = draw(tokens, 25)
    p, _ = proximal_points(tokens, beta, 1.0, z0, z, Sigma)
    for i in range(len(z)):
        function = objective(tokens, beta, 1.0, z0[i], z[i], Sigma)
        ends = [minimize(function, start, tol=1e-10) for start in (z[i], z0[i] / beta, 0 * z[i])]
        best = min(ends, key=lambda end: end.fun)
        # BFGS with differenced gradients leaves 1e-8 in the gradient, hence some 1e-10 in the value at Sigma = 10
        assert function(p[i]) <= best.fun + 1e-12
        if abs(function(p[i]) - best.fun) < 1e-8:
            np.testing.assert_allclose(p[i], best.x, atol=1e-4)


@pytest.mark.parametrize(("beta", "Sigma"), [(1.0, 60.0), (2.0, 0.7), (2.0, 4.0), (4.0, 1.0)])
def test_the_lowest_minimum_is_found(beta, Sigma):
    """A grid in the two logits, fine against the width 1/beta of a well, of samples many of which have two minima."""
    z0, z = draw(2, 400, m=1.5, q=2.8, seed=3)
    p, _ = proximal_points(2, beta, beta, z0, z, Sigma)
    to_logits = np.array([[1, np.sqrt(2)], [-1, np.sqrt(2)]])
    u = np.arange(-10, 10, 0.15)
    r = np.stack(np.meshgrid(u, u, indexing="ij"), -1) @ np.linalg.inv(to_logits).T

    def value(z0, z, r):
        A, y = (1 / (1 + np.exp(-beta * (x @ to_logits.T))) for x in (r, z0))
        return np.sum((r - z) ** 2, axis=-1) / (2 * Sigma) + 2 * np.sum((A - y) ** 2, axis=-1)

    excess = [value(z0[i], z[i], p[i]) - value(z0[i], z[i], r).min() for i in range(len(z))]
    assert max(excess) < 1e-12


@pytest.mark.parametrize(
    "make",
    [
        TwoTokenMap,
        pytest.param(lambda *betas: RowsMap(2, *betas), marks=pytest.mark.slow),
        pytest.param(lambda *betas: generic_map(2, *betas), marks=pytest.mark.slow),
    ],
)
def test_a_descent_leaves_the_saddle_that_symmetry_leads_to(make):
    """Nodes with t0 = t = 0 are their own mirror images, and Gauss-Hermite rules of odd order have some.

    Of the starting points all are on the line t = 0, the minima are not: there the curvature across is -0.1/Sigma.
    """
    Sigma, s0, s = 6.35, np.array([[0.0, 0.0], [0.8234402, 0.0]]), np.array([[-4.05, 0.0], [4.0224, 0.0]])
    proximal = make(1.0, 1.0)
    to_own = visible_basis(2).T if proximal.visible_directions == 3 else np.eye(2)
    z0, z = s0 @ to_own, s @ to_own
    points = proximal.solve(z0, z, Sigma, None, True)
    for i in range(len(z)):
        function = objective(2, 1.0, 1.0, s0[i], s[i], Sigma)
        best = min(minimize(function, start, tol=1e-10).fun for start in (s[i] + [0, 0.5], s[i] - [0, 0.5]))
        assert points.value[i] == pytest.approx(best, abs=1e-9)  # BFGS leaves 1e-10
    trace, response = proximal.derivative(points.y, points.p, Sigma)
    # 1e21 at a saddle; at a minimum (1 + Sigma H)^{-1} is positive and, here, below ten
    assert (response < 100 / Sigma**2).all()
    assert (trace > 0).all()


def test_a_long_step_would_leap_over_the_minimum():
    """Row 1 is held on the slope of its well; a plain Newton step from the well lands in the other minimum."""
    z0 = np.array([[(1.12 + 4.52) / 2, (1.12 - 4.52) / np.sqrt(8)]])
    z = np.array([[(-2.18 + 5.96) / 2, (-2.18 - 5.96) / np.sqrt(8)]])
    proximal = TwoTokenMap(2.0, 2.0)
    _, beyond = proximal.descend(proximal.output(z0), z, z, 0.709)
    assert beyond[0] > 1.55
    assert proximal.solve(z0, z, 0.709, None, False).value[0] < 1.45


@pytest.mark.parametrize(("beta", "Sigma"), [(1.0, 0.01), (2.0, 3.0), (1.0, 1000.0)])
def test_the_kernel_for_any_number_of_tokens_equals_the_closed_form(beta, Sigma):
    z0, z = draw(2, 500)
    closed, rows = TwoTokenMap(beta, 0.7), RowsMap(2, beta, 0.7)
    a, b = (proximal.solve(z0, z, Sigma, None, True) for proximal in (closed, rows))
    # both stop at an error of rounding, amplified by the flattest of 500 minima
    np.testing.assert_allclose(a.p, b.p, atol=1e-10)
    np.testing.assert_allclose(a.value, b.value, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(a.disagree, b.disagree)
    np.testing.assert_allclose(closed.loss(a.y, z), rows.loss(b.y, z), rtol=1e-10, atol=1e-15)
    for x, y in zip(closed.derivative(a.y, a.p, Sigma), rows.derivative(b.y, b.p, Sigma), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7)


def generic_map(tokens, beta, target_beta):
    return GenericMap(
        tokens,
        lambda y, h: ((y - jax.nn.softmax(beta * h, axis=1)) ** 2).sum(),
        lambda R: jax.nn.softmax(target_beta * R, axis=1),
    )


@pytest.mark.parametrize("tokens", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_automatic_differentiation_gives_the_same_points(tokens):
    Sigma, basis = 5.0, visible_basis(tokens)
    z0, z = draw(tokens, 300)
    compiled, differentiated = softmax_map(tokens, 1.5, 1.0), generic_map(tokens, 1.5, 1.0)
    expected = compiled.solve(z0, z, Sigma, None, True)
    points = differentiated.solve(z0 @ basis.T, z @ basis.T, Sigma, None, True)
    np.testing.assert_allclose(points.value, expected.value, rtol=1e-12)
    # a minimum is known to the root of the rounding of its value, better where Newton's last step squares that
    np.testing.assert_allclose(points.p @ basis, expected.p, atol=1e-8)
    trace, response = compiled.derivative(expected.y, expected.p, Sigma)
    own_trace, own_response = differentiated.derivative(points.y, points.p, Sigma)
    invisible = basis.shape[0] - basis.shape[1]  # there p = z
    np.testing.assert_allclose(own_trace - invisible, trace, atol=1e-6)
    np.testing.assert_allclose(own_response, response, rtol=1e-6)


@pytest.mark.parametrize("tokens", [2, 3])
def test_the_trace_is_that_of_the_derivative(tokens):
    z0, z = draw(tokens, 50)
    Sigma, step = 0.5, 1e-5
    _, trace = proximal_points(tokens, 1.0, 1.0, z0, z, Sigma)
    difference = np.zeros(len(z))
    for k in range(z.shape[1]):
        shift = step * np.eye(z.shape[1])[k]
        plus, minus = (proximal_points(tokens, 1.0, 1.0, z0, z + sign * shift, Sigma)[0] for sign in (1, -1))
        difference += (plus - minus)[:, k] / (2 * step)
    np.testing.assert_allclose(trace, difference, atol=1e-7)  # step^2 times a third derivative


@pytest.mark.parametrize("make", [RowsMap, pytest.param(generic_map, marks=pytest.mark.slow)])
def test_a_sample_does_not_depend_on_those_beside_it(make):
    """Bit for bit, with fewer samples than lanes and with more, in one part and in several."""
    z0, z = draw(3, 5000, seed=1)
    if make is generic_map:  # in all coordinates
        z0, z = (x @ visible_basis(3).T for x in (z0, z))
    proximal = make(3, 1.5, 1.0)
    whole = proximal.solve(z0, z, 8.0, None, True)
    some = slice(4321, 4324)
    alone = proximal.solve(z0[some], z[some], 8.0, None, True)
    np.testing.assert_array_equal(alone.p, whole.p[some])
    np.testing.assert_array_equal(alone.value, whole.value[some])
    for x, y in zip(
        proximal.derivative(whole.y, whole.p, 8.0), proximal.derivative(alone.y, alone.p, 8.0), strict=True
    ):
        np.testing.assert_array_equal(x[some], y)


def test_a_loss_that_calls_lapack_is_right_and_ends():
    """As it is written, such calls on batches, from two threads at once, wait for one another for ever."""
    T, n = 6, 20_000

    def loss(y, h):
        return ((y - h) ** 2).sum() + jnp.linalg.eigvalsh(h @ h).max() + jnp.linalg.slogdet(jnp.eye(T) + h @ h.T)[1]

    with_eigenvalues = GenericMap(T, loss, lambda R: R)
    z = draw(T, n)[1] @ visible_basis(T).T
    y, h = np.zeros((n, T, T)), np.stack([with_eigenvalues._preactivation(r) for r in z[:3]])
    squares = [np.linalg.eigvalsh(one @ one) for one in h]
    expected = (h**2).sum((1, 2)) + [one.max() + np.log(1 + one).sum() for one in squares]
    for _ in range(5):
        np.testing.assert_allclose(with_eigenvalues.loss(y, z)[:3], expected, rtol=1e-12)  # rounding


@pytest.mark.parametrize("tokens", [3, 5])
def test_below_the_critical_penalty_no_curvature_is_negative(tokens):
    """Where descents from several starts are left out: the worst is a doubt between two tokens, whatever the others."""
    proximal = RowsMap(tokens, 1.0, 1.0)
    B = proximal.row_logits.reshape(tokens, tokens, -1)
    rng = np.random.default_rng(0)
    y = np.eye(tokens)[rng.integers(tokens, size=(20_000, tokens))]
    h = 2 * np.log(2) * rng.normal(size=(20_000, proximal.visible_directions)) @ B.reshape(tokens**2, -1).T
    A = np.exp(h).reshape(-1, tokens, tokens)
    A /= A.sum(axis=2, keepdims=True)
    k = A * (2 * A - y - np.sum(A * (A - y), axis=2, keepdims=True))
    mean = np.einsum("nac,aci->nai", A, B)
    H = 2 * np.einsum("nac,naci,nacj->nij", k, B - mean[:, :, None], B - mean[:, :, None], optimize=True)
    lowest = np.linalg.eigvalsh(H)[:, 0].min()
    assert lowest < -0.5  # the draws do come close
    assert 1 + 1.03 * lowest > 0
    assert not proximal.may_jump(y, 1.03).any()
    assert proximal.may_jump(y, 1.05).all()


def test_several_starts_at_chosen_samples_only():
    z0, z = draw(3, 2000, m=1.5, q=2.8, seed=3)
    proximal = RowsMap(3, 2.0, 2.0)
    everywhere = proximal.solve(z0, z, 4.0, None, True)
    assert 0 < everywhere.disagree.sum() < 1000
    chosen = proximal.solve(z0, z, 4.0, None, everywhere.disagree)
    np.testing.assert_array_equal(chosen.disagree, everywhere.disagree)
    # the first start is among all: where all ends agree it is theirs, to the rounding of the objective
    np.testing.assert_allclose(chosen.value, everywhere.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("tokens", "all_starts"), [(2, 4), (3, 8)])
def test_two_starts_tell_which_samples_are_worth_all(monkeypatch, tokens, all_starts):
    """No start is made twice; beyond two, if they tell of several minima, all are: everywhere, or only there.

    Two tell of nearly all.
    """
    descents = []
    proximal = softmax_map(tokens, 2.0, 2.0)
    descend = proximal.descend
    monkeypatch.setattr(proximal, "descend", lambda *args: descents.append(len(args[0])) or descend(*args))
    z0, z = draw(tokens, 2000)
    proximal.solve(z0, z, 0.3, None, True)  # beyond the bound of convexity, but without several minima
    assert proximal.may_jump(proximal.output(z0), 0.3).any()
    assert len(descents) == 2
    proximal.solve(z0, z, 0.3, z, True)  # from points that are no start
    assert len(descents) == 2 + 3
    descents.clear()
    everywhere = proximal.solve(z0, z, 2.0, None, True)
    assert len(descents) == all_starts
    masked = proximal.solve(z0, z, 2.0, None, np.ones(len(z), bool))
    np.testing.assert_array_equal(everywhere.p, masked.p)
    descents.clear()
    found = proximal.solve(z0, z, 2.0, None, True, thorough=False)
    assert found.disagree.sum() > 10
    assert descents[2:] == [found.disagree.sum()] * (all_starts - 2)
    assert not (found.disagree & ~everywhere.disagree).any()
    assert found.disagree.sum() > 0.9 * everywhere.disagree.sum()
    higher = found.value > everywhere.value + DISAGREEMENT
    assert higher.sum() <= 0.01 * everywhere.disagree.sum()
    np.testing.assert_array_equal(found.p[~higher], everywhere.p[~higher])


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("Sigma", [1e-9, 1e9])
def test_extreme_penalties(tokens, Sigma):
    z0, z = draw(tokens, 200)
    p, trace = proximal_points(tokens, 1.0, 2.0, z0, z, Sigma)
    if Sigma < 1:
        np.testing.assert_allclose(p, z, atol=1e-8)
        np.testing.assert_allclose(trace, z.shape[1], atol=1e-7)
    else:  # the loss vanishes where the learner's logits are the target's
        loss = softmax_map(tokens, 1.0, 2.0).loss(softmax_map(tokens, 1.0, 2.0).output(z0), p)
        assert np.max(loss) < 1e-8
        assert np.isfinite(trace).all()
