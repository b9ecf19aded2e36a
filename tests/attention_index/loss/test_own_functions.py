"""Losses and penalties of the user's own are tried when a problem is made, and refused in one sentence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.loss.own_functions import try_loss

TASK = asx.AttentionIndex(noise=0.5)
ANY: Any = lambda cls: cls  # noqa: E731 (what a type checker would refuse as well)
RANDOM = np.random.default_rng(0)


def squared_softmax(y, h):
    return ((y - jax.nn.softmax(h, axis=1)) ** 2).sum()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("absolute", "loss must be one of 'squared', 'cross_entropy', or a JAX function"),
        (np.ones(3), "loss must be one of"),
        (None, "loss must be one of"),
        (lambda y: y.sum(), r"loss must be a JAX function loss\(y, h\).*takes 1 positional argument"),
        (lambda y, h: np.exp(h).sum(), "loss must be a JAX function.*TracerArrayConversionError"),
        (lambda y, h: (y - h) ** 2, r"loss must be .* which returns an array of shape \(2, 2\)"),
        (lambda y, h: 1j * h.sum(), "loss must be .* which returns a number of the type complex128"),
        (lambda y, h: jnp.argmax(h), "loss must be .* which returns a number of the type int64"),
        (lambda y, h: 1 / 0, "loss must be .* which raised ZeroDivisionError"),
        (lambda y, h: ((y - h) @ jnp.ones((7, 7))).sum(), "loss must be .* which raised TypeError"),
        (lambda y, h: jnp.log(h).sum(), "loss must have a finite value, got .* which has nan"),
        (lambda y, h: (y**2).sum(), "loss must depend on h"),
        (lambda y, h: (h**2).sum() + RANDOM.normal(), "loss must give the same number whenever it is called"),
        (asx.MarchenkoPastur, "loss must be a JAX function"),
    ],
)
def test_what_is_no_loss_is_refused(loss, message):
    with pytest.raises(ValueError, match=message) as caught:
        asx.RiskMinimization(TASK, loss=loss)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("penalty", "parameterization", "message"),
    [
        ("ridge", "full", r"penalty must be a convex JAX function r\(t\)"),
        (lambda t, u: t, "full", "penalty must be .* missing 1 required positional argument"),
        (lambda t: np.sqrt(t), "full", "penalty must be .*TracerArrayConversionError"),
        (lambda t: jnp.stack([t, t]), "full", r"penalty must be .* an array of shape \(2,\)"),
        (jnp.sqrt, "factorized", "penalty must have a finite slope at t = 0"),
        (jnp.log1p, "factorized", "penalty must be convex"),
        (lambda t: -(t**2), "full", "penalty must be convex"),
        (lambda t: t**2 * (t - 1) ** 2, "factorized", "penalty must be convex"),
        (lambda t: jnp.where(t > 1, t, 0.0), "factorized", "penalty must be convex.*between t = 0.9.* and 1"),
        (lambda t: -t, "factorized", "penalty must grow towards large"),
        (lambda t: t, "full", "penalty must grow towards large .* t = -"),
        (lambda t: 0.0 * t, "factorized", "penalty must grow"),
    ],
)
def test_what_is_no_convex_penalty_is_refused(penalty, parameterization, message):
    with pytest.raises(ValueError, match=message) as caught:
        asx.RiskMinimization(TASK, penalty=penalty, parameterization=parameterization)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("penalty", "parameterization"),
    [
        (lambda t: t, "factorized"), (lambda t: t**1.5, "factorized"), (jnp.expm1, "factorized"),
        (lambda t: (t - 1) ** 2, "factorized"), (jnp.abs, "full"), (jnp.cosh, "full"),
        (lambda t: jnp.maximum(t - 1, 0) ** 2, "factorized"),
    ],
)  # fmt: skip
def test_convex_penalties_are_taken(penalty, parameterization):
    asx.RiskMinimization(TASK, penalty=penalty, parameterization=parameterization)


@pytest.mark.slow  # three programs to compile
def test_convexity_of_a_loss():
    assert not try_loss(squared_softmax, TASK)
    assert try_loss(lambda y, h: -(y * jax.nn.log_softmax(h, axis=1)).sum(), TASK)
    assert try_loss(lambda y, h: ((y - h) ** 2).sum(), TASK)


def test_a_function_that_cannot_be_hashed_is_tried_too():
    class Loss:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, y, h):
            return ((y - h) ** 2).sum()

    assert try_loss(Loss(), TASK)


# -- other fields --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ANY(asx.AttentionIndex)(target=asx.MarchenkoPastur), TypeError, "the class MarchenkoPastur, not"),
        (lambda: ANY(asx.RiskMinimization)(asx.AttentionIndex), TypeError, "the class AttentionIndex, not an instance"),
        (lambda: asx.RiskMinimization(asx.AttentionIndex(tokens=1000)), MemoryError, "1000 tokens takes .* GiB"),
        (lambda: asx.BayesOptimal(asx.AttentionIndex(tokens=1000)), MemoryError, "1000 tokens takes .* GiB"),
        (lambda: asx.AttentionIndex(tokens=10**30), ValueError, "tokens must be"),
        (lambda: asx.AttentionIndex(beta=np.inf), ValueError, "beta must be"),
        (lambda: asx.RiskMinimization(TASK, weight_decay=np.inf), ValueError, "weight_decay must be"),
        (lambda: ANY(asx.AttentionIndex)(activation=jnp.tanh), ValueError, "activation must be one of"),
        (lambda: asx.Atoms((1e300, 1.0)), ValueError, "values must have a largest eigenvalue between"),
        (lambda: asx.Empirical(np.ones(2_000_000)), ValueError, "spectrum must be at most 1,000,000 eigenvalues"),
        (lambda: asx.MarchenkoPastur(1e300), ValueError, "kappa0 must be between"),
        (lambda: asx.PowerLaw(1e300), ValueError, "exponent must be at most 20"),
        (lambda: asx.PowerLaw(3.0, cutoff=1e300), ValueError, "cutoff must be above 1 and at most"),
        (lambda: asx.PowerLaw(3.0, mean_square=1e300), ValueError, "mean_square must be between"),
    ],
)
def test_values_that_cannot_be_are_refused_at_once(build, error, message):
    with pytest.raises(error, match=message):
        build()
