"""Links that JAX would take without a word, and sizes that cannot be, are refused when the model is made."""

import math
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, DeepAttention, InfiniteDepthAttention, MultiIndex, SequenceIndex, solve
from asymptotix.numerics import memory

RANDOM = np.random.default_rng(0)


class Unhashable:
    def __eq__(self, other):
        return True

    def __call__(self, z):
        return z[0]


class Counting:
    """Depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, z):
        self.calls += 1
        return z[0] + self.calls


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (lambda z: z[7], "link must read the array of shape .2,. that it gets.*index 7 is out of bounds"),
        (lambda z: jnp.tanh(z)[jnp.array([0, 5])].sum(), "index 5 is out of bounds for axis 0 with size 2"),
        (jax.jit(lambda z: z[-5]), "out of bounds"),
        (lambda z: 3.0, r"which returns \[3.\] at 64 random places"),
        (lambda z: z[5:].sum(), "random places"),
        (lambda z: z[0] + RANDOM.standard_normal(), "other numbers when it is called again"),
        (Counting(), "other numbers when it is called again"),
        (lambda z: jnp.log(z[0]), r"which returns \[nan\] at"),
        (lambda z: jnp.where(z[0] > 3.5, jnp.inf, z[1]), r"which returns \[inf\] at"),
        (lambda z: 1j * z[0], "finite real numbers"),
        (lambda z: z[:0], "at least one number"),
    ],
)
def test_link_that_cannot_be_used(link, message):
    with pytest.raises(ValueError, match=message):
        MultiIndex(link, 2)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (lambda z: z[1] if z[0] > 0 else -z[1], r"use jnp.where\(cond, a, b\) instead of if"),
        (lambda z: max(z[0], z[1]), "jnp.minimum"),
        (lambda z: np.sign(z[0]) * z[1], "use jnp.sign instead of np.sign"),
        (lambda z: math.sin(z[0]) + z[1], "use jnp.sin instead of math.sin"),
    ],
)
def test_link_in_plain_python_is_told_what_to_write(link, message):
    with pytest.raises(ValueError, match=message) as refused:
        MultiIndex(link, 2)
    assert "errors.html" not in str(refused.value)  # nor is JAX's own page of advice for other cases shown


@pytest.mark.parametrize(("link", "message"), [(Unhashable(), "link must be hashable"), (Unhashable, "the class")])
def test_link_of_the_wrong_kind(link, message):
    with pytest.raises(TypeError, match=message):
        MultiIndex(link, 2)
    with pytest.raises(TypeError, match="activation must be a hashable function"):
        DeepAttention(2, 2, activation=link)


@pytest.mark.parametrize("link", [lambda z: (z[0] > 3.0).astype(float), lambda z: 1 / z[0], lambda z: z[-1] * z[0]])
def test_rare_singular_and_backward_links_are_taken(link):
    assert MultiIndex(link, 2).indices == 2


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(memory, "physical_memory", lambda: 2**33)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiIndex(lambda z: z.sum(), 500),
        lambda: MultiIndex(lambda z: jnp.broadcast_to(z[0], (10**6,)), 1),
        lambda: SequenceIndex(lambda Z: Z.sum(), 1, 1000),
        lambda: DeepAttention(2, 2, heads=5000),
        lambda: DeepAttention(2, 10**6),
        lambda: InfiniteDepthAttention(10**6, 1.0),
    ],
)
@pytest.mark.usefixtures("small_machine")
def test_sizes_that_do_not_fit_are_refused_at_once(make):
    begun = time.perf_counter()
    with pytest.raises(MemoryError, match=r"takes [\d.e+]+ \w+, and there are 8"):
        make()
    assert time.perf_counter() - begun < 2.0


@pytest.mark.parametrize("name", ["layers", "tokens", "heads", "rank"])
def test_huge_integers_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer"):
        DeepAttention(**cast(Any, {"layers": 2, "tokens": 2, name: 10**30}))
    with pytest.raises(ValueError, match="indices"):
        MultiIndex(lambda z: z[0], 10**30)


@pytest.mark.usefixtures("small_machine")
def test_theory_that_does_not_fit_is_refused_before_it_starts():
    problem = BayesOptimal(DeepAttention(1, 1000))
    with pytest.raises(MemoryError, match="state evolution of 1 indices and 1000 tokens takes"):
        solve(problem, alpha=0.1, progress=False)
