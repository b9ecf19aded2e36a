"""Links of three and four indices with several outputs that share them: error bars cover what is known otherwise.

Outputs that each see indices of their own are mixed: what one of them tells stays the same, and is known from one
number alone, but the link has no parts any more. A rotation leaves noise as it is.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import staircase_quadrature as by
from asymptotix import BayesOptimal, MultiIndex, thresholds

pytestmark = pytest.mark.slow


class Part(NamedTuple):
    """An output of its own indices, and the steps of its staircase under noise."""

    indices: int
    output: Callable
    steps: Callable[[float], list[float]]


def steps_by(terms: Sequence[by.Term], starts: bool) -> Callable[[float], list[float]]:
    @cache
    def steps(noise: float) -> list[float]:
        return [step.alpha for step in by.staircase(by.summed(terms, noise), len(terms), starts)]

    return steps


@cache
def of_square(noise: float) -> list[float]:
    if noise:
        return [step.alpha for step in by.staircase(by.summed([by.squares()], noise), 1, False)]
    return [0.5]  # the sign alone is not known: E[(z^2 - 1)^2] = 2


SQUARE = Part(1, lambda z: z[0] ** 2, of_square)
PARABOLA = Part(2, lambda z: z[0] + z[1] ** 2, steps_by([by.linear(), by.squares()], True))
CIRCLE = Part(2, lambda z: z[0] ** 2 + z[1] ** 2, lambda noise: [1.0, 1.0])  # E[(|z|^2 - 2)^2]/2 = 2, half of it each


def mixed(parts: Sequence[Part], mixing: Callable) -> Callable:
    """The link whose outputs are mixtures of those of the parts."""
    ends = np.cumsum([part.indices for part in parts])

    def link(z):
        outputs = [part.output(z[end - part.indices : end]) for part, end in zip(parts, ends, strict=True)]
        return mixing(jnp.stack(outputs))

    return link


def turned(y):
    """A rotation without a preferred axis."""
    return jnp.asarray(np.linalg.qr(np.vander(np.arange(1.0, len(y) + 1)))[0]) @ y


def bent(y):
    """One to one, but not linear."""
    return jnp.stack([y[0] + y[1] ** 3 / 10, y[1]])


CASES: dict[str, tuple[Sequence[Part], Callable, float]] = {
    "square, parabola": ((SQUARE, PARABOLA), turned, 0.0),
    "square, parabola, bent": ((SQUARE, PARABOLA), bent, 0.0),
    "square, circle": ((SQUARE, CIRCLE), turned, 0.0),
    "parabola, circle": ((PARABOLA, CIRCLE), turned, 0.0),
    "parabola, parabola": ((PARABOLA, PARABOLA), turned, 0.0),
    "square, parabola, noise": ((SQUARE, PARABOLA), turned, 0.1),
    "parabola, parabola, noise": ((PARABOLA, PARABOLA), turned, 0.5),
    "square, square, parabola": ((SQUARE, SQUARE, PARABOLA), turned, 0.0),
    "three squares, noise": ((SQUARE,) * 3, turned, 0.3),
    "square, square, parabola, noise": ((SQUARE, SQUARE, PARABOLA), turned, 0.3),
    "four squares, noise": ((SQUARE,) * 4, turned, 0.3),
}


def of_parts(name: str) -> tuple[MultiIndex, np.ndarray]:
    """A link and the thresholds of its indices."""
    parts, mixing, noise = CASES[name]
    exact = np.concatenate([part.steps(noise) for part in parts])
    return MultiIndex(mixed(parts, mixing), len(exact), noise), exact


def up_to_a_sign(P: int) -> np.ndarray:
    """Where an output tells all indices but for one sign: E[G X G] = X + tr(X), G = z z^T - 1, so that it is 1 + P."""
    return np.full(P, 1 / (1 + P))


KNOWN: dict[str, tuple[MultiIndex, np.ndarray]] = {
    "products in a circle": (MultiIndex(lambda z: z * jnp.roll(z, 1), 3), up_to_a_sign(3)),
    "products and a square": (MultiIndex(lambda z: z * jnp.append(z[1:], z[3]), 4), up_to_a_sign(4)),
    # E[z_i z_j | signs] = +-2/pi
    "two signs": (MultiIndex(lambda z: jnp.sign(z[:2] * z[1:]), 3), np.full(3, np.pi**2 / 8)),
}
#: Largest relative error at default tolerance, by the number of outputs: leaves of trees are as narrow as they are few.
#: That of three and four is for links that are singular.
ALLOWED = {2: 3e-3, 3: 8e-3, 4: 3e-2}


@cache
def distances(name: str) -> np.ndarray:
    """Of the thresholds of all indices, in stated errors; those that are zero are found to be."""
    model, exact = KNOWN[name] if name in KNOWN else of_parts(name)
    found = thresholds(BayesOptimal(model), which=["weak_recovery"], progress=False).ds
    weak, errors, some = found["weak_recovery"].values, found["weak_recovery_err"].values, exact > 0
    assert (weak[~some] == 0).all()
    outputs = len(np.ravel(model.link(np.ones(model.indices))))
    assert (errors[some] <= ALLOWED[outputs] * exact[some]).all(), (weak, errors)
    return (weak[some] - exact[some]) / errors[some]


#: Of these a minute each is enough, the others are run with all that takes long.
SHORT = ["three squares, noise", *KNOWN]
LONG = [pytest.param(name, marks=pytest.mark.full) for name in CASES if name not in SHORT]


@pytest.mark.filterwarnings("ignore:.*exceeds the tolerance")
@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_thresholds_are_within_three_errors(name: str) -> None:
    assert (abs(distances(name)) <= 3).all(), distances(name)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*exceeds the tolerance")
def test_half_of_them_are_within_one_error() -> None:
    within = [float((abs(distances(name)) <= 1).mean()) for name in [*CASES, *KNOWN]]
    assert np.mean(within) >= 0.5


@pytest.mark.parametrize("name", ["square, parabola", pytest.param("parabola, parabola", marks=pytest.mark.full)])
def test_all_is_recovered_where_the_slowest_part_is(name: str) -> None:
    """A parabola needs two samples for each dimension, whatever else is told."""
    model, _ = of_parts(name)
    found = thresholds(BayesOptimal(model), which=["exact_recovery"], progress=False).ds
    assert abs(found.exact_recovery.item() - 2) <= 3 * found.exact_recovery_err.item() <= 0.02
    assert found.exact_recovery_informed.item() == 2
