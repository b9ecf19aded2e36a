"""Programs of links: what is taken off their end, which branches they take, and the volumes that this costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from asymptotix import MultiIndex
from asymptotix.numerics.precision import double_precision
from asymptotix.sequence_index.models.link import SequenceIndex
from asymptotix.sequence_index.models.link_program import LinkProgram
from asymptotix.sequence_index.models.link_tokens import one_token
from asymptotix.sequence_index.models.observed_link import ObservedLink


def program(link, size: int = 2) -> LinkProgram:
    return LinkProgram.of(lambda z: jnp.ravel(jnp.asarray(link(z))), size)


@double_precision()
def shown(link, z) -> np.ndarray:
    return np.asarray(program(link, len(z)).shown(jnp.asarray(z)))


#: Links, and what is left of them when reversible operations are taken off, up to an affine function.
PEELED = {
    "tanh": (lambda z: jnp.tanh(4 * z[0]), lambda z: z[:1]),
    "double exponential": (lambda z: jnp.exp(-jnp.exp(-3 * z[0])), lambda z: z[:1]),
    "erf of a product": (lambda z: 2 - erf(z[0] * z[1]) / 3, lambda z: z[:1] * z[1:2]),
    "odd power": (lambda z: (1e-30 * z[0] ** 3) ** 5, lambda z: z[:1]),
    "inverse": (lambda z: 1 / (1 + jnp.exp(z[0])), lambda z: z[:1]),
    "two outputs": (lambda z: jnp.stack([erf(z[0]), z[1]]), lambda z: z[:2]),
    "inside of a call": (jax.jit(lambda z: jnp.sinh(z[0]) + 1.0), lambda z: z[:1]),
    "once": (lambda z: jnp.stack([z[0], z[0] ** 2, jnp.tanh(z[0])]), lambda z: z[:1]),
    "even power": (lambda z: jnp.log1p(z[0] ** 2), lambda z: z[:1] ** 2),
    "rectifier": (lambda z: jnp.exp(jnp.maximum(z[0], 0.0)), lambda z: np.maximum(z[:1], 0.0)),
}


@pytest.mark.parametrize("name", PEELED)
def test_what_is_shown_is_what_is_left(name):
    link, left = PEELED[name]
    Z = np.random.default_rng(0).standard_normal((50, 2))
    found, expected = np.array([shown(link, z) for z in Z]), np.array([left(z) for z in Z])
    assert found.shape == expected.shape
    for one, other in zip(found.T, expected.T, strict=True):
        slope, offset = np.polyfit(other, one, 1)
        np.testing.assert_allclose(one, slope * other + offset, atol=1e-12 * abs(slope))


@pytest.mark.parametrize(
    "link",
    [
        *(link for link, _ in PEELED.values()),
        lambda z: jnp.cbrt(z[0]) ** 3.0,
        lambda z: jnp.sqrt(jnp.exp(z[0])) + 2,
        lambda z: 3.0 ** z[0],
        lambda z: jnp.array([1.0, 1.0]) * jnp.arcsinh(z) - 1,
    ],
)
def test_volumes_are_those_of_differentials(link):
    """log sqrt(det H^T H), H = dy/du, so that dy/dz = H du/dz."""
    own = program(link)
    with double_precision():
        for z in abs(np.random.default_rng(1).standard_normal((5, 2))) + 0.1:
            z = jnp.asarray(z)
            whole = np.asarray(jax.jacfwd(lambda z: jnp.ravel(jnp.asarray(link(z))))(z))
            inner = np.asarray(jax.jacfwd(own.shown)(z))
            H = whole @ np.linalg.pinv(inner)
            expected = 0.5 * np.log(np.linalg.svd(H, compute_uv=False)[: len(inner)] ** 2).sum()
            np.testing.assert_allclose(own.log_volume(own.shown(z)), expected, atol=1e-8)


def test_a_volume_is_known_where_the_slope_is_rounded_to_zero():
    own = program(lambda z: jnp.tanh(z[0]), 1)
    with double_precision():
        np.testing.assert_allclose(own.log_volume(jnp.array([30.0])), np.log(4) - 60, rtol=1e-12)


def test_analytic_programs_are_known():
    for link in (lambda z: jnp.tanh(z[0]) * z[1], lambda z: jax.nn.sigmoid(z), lambda z: z @ jnp.eye(2) @ z):
        assert program(link).analytic
    for link in (lambda z: jnp.maximum(z[0], z[1]), lambda z: jnp.sign(z[0]), lambda z: abs(z[0]), lambda z: z[0] > 0):
        assert not program(link).analytic
        assert program(link).branching
    assert not program(lambda z: jnp.sort(z)).branching


def test_branches_tell_pieces_apart():
    own = ObservedLink(MultiIndex(lambda z: jnp.where(z[0] > 2.2, 10.0, jnp.clip(z[0], -1, 1)), 1))
    taken = own.branches(np.array([[-3.0], [-2.0], [0.0], [0.5], [1.5], [2.0], [2.3], [9.0]]))
    assert taken is not None
    same = (taken[1:] == taken[:-1]).all(1)
    assert same.tolist() == [True, False, True, False, True, False, True]


def test_units_and_origins_of_outputs():
    Z = np.random.default_rng(2).standard_normal((200, 2, 1))
    for noise in (0.0, 0.3):
        own, other = (
            ObservedLink(MultiIndex(lambda z, c=c, b=b: c * (z[0] * z[1]) ** 2 + b, 2, noise * c**2))
            for c, b in ((1.0, 0.0), (-1e-8, 3.0))
        )
        with double_precision():
            y, turned = (np.array([one.evaluate(z) for z in Z]) for one in (own, other))
        # Rounding of the shift: 3 of 1e-8.
        np.testing.assert_allclose(abs(turned - np.median(turned)), abs(y - np.median(y)), atol=1e-6)
        np.testing.assert_allclose(own.noise, other.noise, rtol=1e-6)
        assert 0.3 < np.ptp(np.quantile(y, [0.25, 0.75])) < 3


def test_tokens_that_are_the_same_function_are_samples():
    found = one_token(SequenceIndex(lambda Z: jnp.stack([Z[0, 0] * Z[1, 0], Z[0, 2] * Z[1, 2]]), 2, 4))
    assert found is not None
    assert (found.copies, found.model.tokens, found.model.indices) == (2, 1, 2)
    for link in (lambda Z: Z[0].sum(), lambda Z: jnp.stack([Z[0, 0], 2 * Z[0, 1]]), lambda Z: Z[0, :1] * Z[0, 1:]):
        assert one_token(SequenceIndex(link, 1, 2)) is None
