"""Message passing from nothing against state evolution, on models of every kind."""

import jax.numpy as jnp
import pytest

from asymptotix import GAMP, BayesOptimal, DeepAttention, InfiniteDepthAttention, MultiIndex, simulate, solve

pytestmark = pytest.mark.slow


def seen(z):
    return z[0] + 0.5 * z[1]


MODELS = {
    "sign": (MultiIndex(lambda z: jnp.sign(z[0]), 1), 1.5, 300, 40),
    # Close above the threshold of exact recovery, 1.129: at D = 300 half of the runs are still on their way.
    "square": (MultiIndex(lambda z: z[0] ** 2, 1), 1.3, 1000, 40),
    "one direction of two, noisy": (MultiIndex(seen, 2, noise=0.2), 0.8, 300, 40),
    "product": (MultiIndex(lambda z: z[0] * z[1], 2), 2.5, 120, 20),
    "sign of a product": (MultiIndex(lambda z: jnp.sign(z[0] * z[1]), 2), 5.0, 100, 10),
    "one layer, three tokens": (DeepAttention(1, 3), 0.3, 300, 40),
    "one layer, rank two": (DeepAttention(1, 2, rank=2), 0.9, 300, 40),
    "one layer, untied": (DeepAttention(1, 2, tied=False), 0.6, 300, 40),
    "one layer, two heads": (DeepAttention(1, 2, heads=2), 1.2, 200, 40),
    "two layers, linear": (DeepAttention(2, 2, activation="linear"), 1.2, 200, 40),
    "infinite depth": (InfiniteDepthAttention(tokens=2, beta=1.0), 0.6, 300, 40),
}


#: Models of one layer, and indices that enter together with posteriors that take milliseconds a sample.
LONGEST = ("product", "sign of a product", "one layer, rank two", "one layer, untied")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n in LONGEST else n for n in MODELS])
def test_message_passing_reaches_the_fixed_point(name):
    model, alpha, dim, iterations = MODELS[name]
    problem = BayesOptimal(model)
    expected = solve(problem, alpha=alpha, tolerance=0.02, progress=False).overlap.values
    runs = simulate(problem, GAMP(iterations=iterations), alpha=alpha, dim=dim, seeds=4, progress=False)
    P = problem.theory.channel.indices
    found = runs.overlap.values.reshape(4, P, P)
    error = found.std(0, ddof=1) / 2
    # What is left at these sizes is a bias of about 1/sqrt(D).
    assert (abs(found.mean(0) - expected.reshape(P, P)) < 2 * error + 0.05).all()
