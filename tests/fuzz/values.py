"""What people and programs hand over by mistake, and the extremes of what they may mean."""

from __future__ import annotations

import decimal
import fractions
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import asymptotix as asx


class Unhashable:
    """A link whose class compares but cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    def __call__(self, z):
        return z[0]


class Hostile:
    """Raises at whatever it is asked."""

    def __call__(self, *args):
        raise RuntimeError("hostile")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("hostile array")

    def __float__(self):
        raise OverflowError("hostile float")


def raises(z):
    raise ZeroDivisionError("inside the function")


def beyond(z):
    return z[7]


def constant(z):
    return 1.0


def random(z):
    return z[0] + np.random.default_rng().standard_normal()


def not_finite(z):
    return jnp.log(z[0])


def with_numpy(z):
    return np.linalg.eigvals(np.asarray(z))


def words(z):
    return "result"


def huge(z):
    return jnp.ones(10**6) * z[0]


def good(z):
    return z[0]


def three_arguments(a, b, c):
    return a


#: Numbers: legal ones of all sizes, and what is none.
NUMBERS: Sequence[Any] = (
    0, 1, 2, 3, 7, 0.3, 0.5, 1.5, 1e-3, 1e-8, 1e-12, 1e-100, 1e-300, 5e-324, 30.0, 1e3, 1e4, 1e6, 1e12, 1e100, 1e300,
    -0.0, -1, -0.5, float("nan"), float("inf"), float("-inf"), 10**9, 10**18, 10**30, 10**400, -(10**30), 2**31, 2**63,
    np.float32(0.5), np.int64(3), np.float64("nan"), np.array(0.5), np.array(2), jnp.float32(0.5), True, np.True_,
    fractions.Fraction(1, 3), decimal.Decimal("0.5"), 1j, np.complex128(1.0),
)  # fmt: skip
#: What is no number.
THINGS: Sequence[Any] = (
    None, "", "one", "0.5", "uninformed", "softmax", b"bytes", object(), object, Ellipsis, NotImplemented, {},
    {"a": 1}, set(), {1.0, 2.0}, frozenset({3}), slice(2), Hostile(), asx.GAMP, asx.GAMP(), asx.DeepAttention,
    asx.MarchenkoPastur, asx.MarchenkoPastur(0.5), asx.DeepAttention(1, 2), ValueError("x"), ValueError, np,
    np.random.default_rng(0),
)  # fmt: skip
#: Sequences, of numbers and of what is none.
SEQUENCES: Sequence[Any] = (
    [], (), [1.0], (1.0, 2.0), [0.5, 0.5], [2.0, 1.0], [1.0, float("nan")], [1.0, float("inf")],
    [[1.0, 2.0], [3.0, 4.0]], [[1.0], [1.0, 2.0]], [None], ["a", "b"], [1, "a"], [True, False], range(3), range(0),
    np.zeros(0), np.zeros((0, 3)), np.ones(3), np.ones((2, 2)), np.full(3, np.nan), np.ones((6, 3, 4)),
    np.ones((2, 4, 4)), np.ones(3, dtype=object), np.ones(3, dtype=complex), np.array(["a"]),
    np.ma.masked_array([1.0, 2.0], [False, True]), jnp.ones(3), jnp.zeros((0,)), np.ones((1, 1, 1, 1, 1)),
    np.geomspace(1e-300, 1e300, 5), [10**400], [1e-300, 1e300], [Hostile()], [0], [-1], [0, 1], np.arange(3),
    [3, 1, 2], (0, 0), [(0, 0)], [(0, 99)], [(0, 0), (0, 1)], [0.2, 10**30],
)  # fmt: skip
#: Functions, most of them of the wrong kind.
FUNCTIONS: Sequence[Any] = (
    raises, beyond, constant, random, not_finite, with_numpy, words, huge, good, three_arguments, Unhashable(),
    Hostile(), np.sign, np.abs, jnp.tanh, jnp.abs, jnp.sum, len, print, str, int, lambda: 1.0, lambda *a: None,
    lambda x, y: (x, y), lambda x: -abs(x), lambda x: x**2, lambda x: jnp.inf, lambda x: x[..., None],
    lambda t, y: (t - y) ** 2,
)  # fmt: skip

POOLS: tuple[tuple[float, Sequence[Any]], ...] = ((0.5, NUMBERS), (0.2, SEQUENCES), (0.15, THINGS), (0.15, FUNCTIONS))


def any_value(rng: np.random.Generator) -> Any:
    """One of all values."""
    pool = POOLS[rng.choice(len(POOLS), p=[share for share, _ in POOLS])][1]
    return pool[int(rng.integers(len(pool)))]


def any_number(rng: np.random.Generator) -> Any:
    """A number, or at times what is none."""
    if rng.random() < 0.2:
        return any_value(rng)
    return NUMBERS[int(rng.integers(len(NUMBERS)))]


def any_grid(rng: np.random.Generator) -> Any:
    """A number or a short grid, of any size, or at times what is none."""
    if rng.random() < 0.4:
        return any_number(rng)
    return [NUMBERS[int(rng.integers(len(NUMBERS)))] for _ in range(rng.integers(1, 4))]


def shown(value: Any) -> str:
    """A value in a line, whatever it is."""
    try:
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "10**400"
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    if isinstance(value, Callable) and not isinstance(value, type):
        text = getattr(value, "__name__", text)
    return " ".join(text.split())[:120]
