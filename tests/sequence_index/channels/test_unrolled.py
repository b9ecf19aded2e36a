"""Sums and maxima without loops: the same values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.sequence_index.channels.tools.unrolled import unrolled

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: (jnp.arange(4.0) * z**2).sum(),
        lambda z: abs(z).max() + z.min() * z.prod(),
        lambda z: jnp.where(z.reshape(2, 2) > 0, 1.0, z.reshape(2, 2)).sum((0, 1)),
        lambda z: jnp.stack([z.mean(), z @ z]),
        lambda z: jax.nn.relu(z).sum(),  # has a derivative of its own
        lambda z: jax.lax.fori_loop(0, 3, lambda _, s: s + z.sum(), 0.0),
    ],
)
def test_values_and_derivatives_are_the_same(function):
    np.testing.assert_allclose(jax.vmap(unrolled(function))(X), jax.vmap(function)(X), rtol=1e-5)
    plain, other = (jax.vmap(jax.jacfwd(f))(X) for f in (function, unrolled(function)))
    np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-6)


def test_reductions_are_gone():
    text = str(jax.make_jaxpr(unrolled(lambda z: abs(z).max() + jnp.linalg.norm(z)))(X[0]))
    assert "reduce" not in text
