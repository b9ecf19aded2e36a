"""Staircases of links by deterministic quadrature, with nothing but NumPy and SciPy.

No index has an overlap with another here, so that the state is one overlap q_a per index, and a link is known by its
:data:`Averages`: of overlaps, those of E|g_a|^2 for every index that is learned and of E|G_a|^2 for every other one,
g_a = (E[z_a | y, omega] - omega_a)/(1 - q_a) and G_a = E[z_a z_a^T | y, omega] - I. On the branch of what is learned
q_a/(1 - q_a) = alpha E|g_a|^2, and where alpha E|G_b|^2 = 1 index b follows.

Both kinds of averages are integrals of N^2/E, of densities E of the output and N = E g or E G. Sums of functions of one
index each have them as inverse Fourier transforms; where the output is simple given all indices but the first, it is
integrated over the others. ``finer`` multiplies all numbers of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import root
from scipy.stats import chi

#: Overlaps (n,), zero of what is not learned, to E|g|^2 or E|G|^2 of each index (n,).
Averages = Callable[[np.ndarray], np.ndarray]

#: Density below which the rest of a tail is left out: rounding errors of Fourier sums are as large.
_NO_DENSITY = 1e-13
#: Normals are never larger.
_REACH = 8.5


# -- staircases ------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The alpha at which an index follows, which one, and the overlaps there."""

    alpha: float
    index: int
    overlap: np.ndarray


def staircase(averages: Averages, indices: int, starts: bool = True) -> list[Step]:
    """All steps of a link whose index 0 starts by itself, with an overlap at any alpha; or of which none does."""
    nothing = np.zeros(indices)
    steps = [Step(0.0, 0, nothing)]
    if not starts:
        rates = averages(nothing)
        steps = [Step(float(1 / rates.max()), int(rates.argmax()), nothing)]
    while len(steps) < indices:
        steps.append(_followed(averages, steps))
    return steps


def _followed(averages: Averages, steps: Sequence[Step]) -> Step:
    """The next step: overlaps evolve at larger and larger alpha until something else grows; the point is polished."""
    learned = [step.index for step in steps]
    others = np.setdiff1d(np.arange(len(steps[-1].overlap)), learned)
    q, alpha = steps[-1].overlap.copy(), max(steps[-1].alpha, 0.05)
    q[learned[-1]] = 0.01
    while alpha < 64:
        alpha *= 1.2
        q = evolved(averages, q, alpha, 1e-2)
        rates = averages(q)[others]
        if alpha * rates.max() > 1:
            return _polished(averages, learned, int(others[rates.argmax()]), q)
    raise ArithmeticError(f"nothing follows {learned} up to alpha = {alpha}")


def evolved(averages: Averages, q: np.ndarray, alpha: float, tolerance: float) -> np.ndarray:
    """Where overlaps go from q, those that are zero remaining so, until they move by less than a relative tolerance."""
    learned = q > 0
    for _ in range(1000):
        before, moments = q, alpha * averages(q)
        q = np.where(learned, moments / (1 + moments), 0.0)
        if np.all(abs(q - before) <= tolerance * q):
            return q
    raise ArithmeticError(f"overlaps do not settle at alpha = {alpha}")


def _polished(averages: Averages, learned: list[int], index: int, q: np.ndarray) -> Step:
    """The point at which ``index`` follows, near q: there all alpha_a = q_a/((1-q_a) h_a), and 1/f, are the same."""

    def overlaps(x: np.ndarray) -> np.ndarray:
        q = np.zeros(len(start))
        q[learned] = 1 / (1 + np.exp(-x))
        return q

    def differences(x: np.ndarray) -> np.ndarray:
        rates = averages(overlaps(x))
        return x - np.log(rates[learned] / rates[index])

    start = q
    found = root(differences, np.log(q[learned] / (1 - q[learned])), tol=1e-10)
    if abs(found.fun).max() > 1e-7:
        raise ArithmeticError(f"no crossing near overlaps {q}: {found.message}")
    q = overlaps(found.x)
    return Step(float(1 / averages(q)[index]), index, q)


# -- N^2/E -------------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """Of one index, at fields of weights (w,): what makes E and what makes N, both (w, ...)."""

    weight: np.ndarray
    plain: np.ndarray
    score: np.ndarray


def _averages(seen: Sequence[Seen], density: Callable[[list[np.ndarray]], np.ndarray]) -> np.ndarray:
    """The sum of N^2/E for every index, of the density (w_1, w_2, ..., outputs) that parts of all of them make."""
    plain = [one.plain for one in seen]
    evidence = density(plain)
    result = []
    for a, one in enumerate(seen):
        numerator = density([*plain[:a], one.score, *plain[a + 1 :]])
        squares = np.where(evidence > _NO_DENSITY, numerator**2 / evidence.clip(_NO_DENSITY), 0.0)
        for other in seen:
            squares = np.tensordot(other.weight, squares, 1)
        result.append(squares.sum())
    return np.array(result)


def _panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights, 16 in each of so many equal panels."""
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(low, high, count + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), (half * w).ravel()


# -- sums of functions of one index each -------------------------------------------------------------------------------

#: Overlap, frequencies t, ``finer`` to E exp(i t term) and that of N at fields and frequencies.
Term = Callable[[float, np.ndarray, int], Seen]


def linear(tokens: int = 1) -> Term:
    """The sum of the tokens of an index. Its field only shifts the output."""

    def term(q: float, t: np.ndarray, finer: int) -> Seen:
        plain = np.exp(-tokens * (1 - q) * t**2 / 2)
        return Seen(np.ones(1), plain[None], np.sqrt(tokens) * 1j * t * plain[None])

    return term


def squares(factor: float = 1.0, tokens: int = 1) -> Term:
    """``factor`` times the sum of the squares of the tokens of an index. It knows its field by the length."""

    def term(q: float, t: np.ndarray, finer: int) -> Seen:
        narrowed = 1 - 2j * factor * t * (1 - q)
        if q == 0:
            plain = narrowed ** (-tokens / 2)
            return Seen(np.ones(1), plain[None], np.sqrt(tokens) * (1 / narrowed - 1) * plain[None])
        x, width = _panels(0.0, _REACH, 2 * finer)
        field = np.sqrt(q) * x[:, None]
        plain = narrowed ** (-tokens / 2) * np.exp(1j * factor * t * field**2 / narrowed)
        return Seen(width * chi.pdf(x, tokens), plain, field * 2j * factor * t / narrowed * plain)

    return term


def summed(terms: Sequence[Term], noise: float, *, largest: float = 80.0, finer: int = 1) -> Averages:
    """Where the output is a sum of terms and noise, hardly ever larger than ``largest`` in size."""
    count = 1024 * finer
    t = np.pi / largest * np.arange(count // 2 + 1)
    blur = np.exp(-noise * t**2 / 2)

    def density(rows: list[np.ndarray]) -> np.ndarray:
        """By an inverse Fourier transform, times the width of an output."""
        product = blur
        for row in reversed(rows):
            product = np.expand_dims(row, tuple(range(1, product.ndim))) * product
        return np.fft.irfft(product.conj(), count)

    def averages(q: np.ndarray) -> np.ndarray:
        return _averages([term(overlap, t, finer) for term, overlap in zip(terms, q, strict=True)], density)

    return averages


# -- links whose first index is integrated in closed form, given the others --------------------------------------------

#: Overlap of the first index, the others (n - 1, z_2, ..., z_n) and ``finer`` to E and N of the first given the others,
#: (o, z_2, ..., z_n), at all o pairs of its field and an output; their weights include the width of the output.
First = Callable[[float, np.ndarray, int], Seen]


def shifted(shift: Callable[[np.ndarray], np.ndarray | float], noise: float, largest: float = 80.0) -> First:
    """z_1 + shift(others) and noise, less the field of z_1, which only shifts the output."""

    def first(q: float, others: np.ndarray, finer: int) -> Seen:
        y, step = np.linspace(-_REACH, largest, 300 * finer, retstep=True)
        distance, variance = y.reshape(-1, *[1] * len(others)) - shift(others), 1 - q + noise
        plain = _density(distance, variance)
        return Seen(np.full(len(y), step), plain, distance / variance * plain)

    return first


def stretched(factor: Callable[[np.ndarray], np.ndarray | float]) -> First:
    """z_1 factor(others), which is not small."""

    def first(q: float, others: np.ndarray, finer: int) -> Seen:
        omega, weight = _fields(q, finer)
        x, step = np.linspace(-7.0, 7.0, 200 * finer, retstep=True)
        omega, y = (part.reshape(-1, *[1] * len(others)) for part in np.meshgrid(omega, np.sinh(x), indexing="ij"))
        z = y / factor(others)
        plain = _density(z - omega, 1 - q) / factor(others)
        return Seen(np.multiply.outer(weight, step * np.cosh(x)).ravel(), plain, (z - omega) / (1 - q) * plain)

    return first


def conditioned(first: First, indices: int, *, finer: int = 1) -> Averages:
    """Where the first index is integrated in closed form, the others with nodes."""
    z, width = _panels(-_REACH, _REACH, 5 * finer)
    others = np.array(np.meshgrid(*[z] * (indices - 1), indexing="ij"))

    def density(rows: list[np.ndarray]) -> np.ndarray:
        table, *kernels = rows
        for kernel in kernels:
            table = np.tensordot(table, kernel, (1, 1))
        return table

    def averages(q: np.ndarray) -> np.ndarray:
        return _averages([first(q[0], others, finer), *(_normal(one, z, width, finer) for one in q[1:])], density)

    return averages


def _normal(q: float, z: np.ndarray, width: np.ndarray, finer: int) -> Seen:
    """The prior of an index at its nodes; N is that of G as long as it is not learned."""
    if q == 0:
        prior = width * _density(z, 1.0)
        return Seen(np.ones(1), prior[None], (z**2 - 1) * prior[None])
    omega, weight = _fields(q, finer)
    prior = width * _density(z - omega[:, None], 1 - q)
    return Seen(weight, prior, (z - omega[:, None]) / (1 - q) * prior)


def _fields(q: float, finer: int) -> tuple[np.ndarray, np.ndarray]:
    """Fields N(0, q) and their weights."""
    x, width = _panels(-_REACH, _REACH, 3 * finer)
    return np.sqrt(q) * x, width * _density(x, 1.0)


def _density(x: np.ndarray, variance: float) -> np.ndarray:
    """Of a normal of mean zero."""
    return np.exp(-(x**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
