"""First thresholds of links by deterministic quadrature, with nothing but NumPy and SciPy.

A link is known here by an :class:`Answer`: how much weight falls on each output y of a grid, and
G(y) = E[z z^T | y] - I there. Most are built from a :class:`Law`: the density of a number s of independent normals, and
that density times E[z_a^2 - 1 | s] for each of them; laws are added, subtracted, multiplied and blurred by noise.
Integrals are trapezoidal in the logarithm, where every integrand is analytic and decays, or Gauss-Legendre between
ends; ``finer`` multiplies all numbers of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as all_pairs
from typing import NamedTuple

import numpy as np
from scipy.special import erf, kve, ndtr
from scipy.stats import chi2, norm

#: Density below which the rest of a tail is left out: rounding errors are as large, and G^2 is below 1e4 there.
_NO_DENSITY = 1e-13


class Answer(NamedTuple):
    """Weights (w,) of outputs, summing to one, and G (w, n, n), rows of the index matrix one after the other."""

    weight: np.ndarray
    G: np.ndarray


class Law(NamedTuple):
    """At points s: the density and its products with E[z_a^2 - 1 | s], (1 + n, *s.shape); whether s has both signs."""

    rows: Callable[[np.ndarray], np.ndarray]
    signed: bool = False


def growth_rate(answer: Answer, indices: int, tokens: int = 1) -> float:
    """Largest eigenvalue of F(X)_ij = sum E[G_ik,mn X_kl G_jl,mn] on symmetric matrices."""
    G = answer.G.reshape(-1, indices, tokens, indices, tokens)
    F = np.einsum("y,yimkn,yjmln->ijkl", answer.weight, G, G, optimize=True)
    F = (F + F.transpose(1, 0, 2, 3)) / 2
    F = ((F + F.transpose(0, 1, 3, 2)) / 2).reshape(indices**2, indices**2)
    return float(np.linalg.eigvalsh(F)[-1])


def without_noise(law: Law, *, finer: int = 1) -> Answer:
    """Where the law's number is the output."""
    v, step = np.linspace(-40, 6.5, 240 * finer, retstep=True)
    y = np.concatenate([-np.exp(v), np.exp(v)]) if law.signed else np.exp(v)
    rows = np.concatenate([law.rows(part) for part in np.array_split(y, len(y) // 16)], 1)  # for memory
    return _answer(rows, step * abs(y))


def with_noise(law: Law, variance: float, largest: float, *, finer: int = 1) -> Answer:
    """Where Gaussian noise is added to the law's number; hardly ever larger than ``largest``."""
    u, weight = _panels(0.0, np.sqrt(largest), 60 * finer)  # the roots of the numbers
    s, weight = np.concatenate([-(u**2), u**2]) if law.signed else u**2, 2 * u * weight
    rows = law.rows(s) * (np.tile(weight, 2) if law.signed else weight)
    margin = 9 * np.sqrt(variance)
    count = int(np.ceil((s.max() - s.min() + 2 * margin) / (0.4 * np.sqrt(variance)))) * finer
    y, step = np.linspace(s.min() - margin, s.max() + margin, count, retstep=True)
    blur = np.exp(-((y[:, None] - s) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return _answer(rows @ blur.T, np.full(len(y), step))


def _answer(rows: np.ndarray, width: np.ndarray) -> Answer:
    density, *excesses = rows
    kept = density > _NO_DENSITY
    G = np.zeros((kept.sum(), len(excesses), len(excesses)))
    for index, excess in enumerate(excesses):
        G[:, index, index] = excess[kept] / density[kept]
    return Answer(density[kept] * width[kept], G)


def _panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights, 16 in each of so many equal panels."""
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(low, high, count + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (x + 1)).ravel(), (half * w).ravel()


# -- laws ----------------------------------------------------------------------------------------------------------


def square(factor: float = 1.0) -> Law:
    """``factor`` z^2."""

    def rows(s: np.ndarray) -> np.ndarray:
        density = np.exp(-s / (2 * factor)) / np.sqrt(2 * np.pi * factor * s)
        return np.stack([density, density * (s / factor - 1)])

    return Law(rows)


def absolute() -> Law:
    """|z|."""

    def rows(s: np.ndarray) -> np.ndarray:
        density = 2 * norm.pdf(s)
        return np.stack([density, density * (s**2 - 1)])

    return Law(rows)


def squared_radius(n: int, factor: float = 1.0) -> Law:
    """``factor`` (z_1^2 + ... + z_n^2)."""

    def rows(s: np.ndarray) -> np.ndarray:
        density = chi2.pdf(s / factor, n) / factor
        return np.stack([density, *[density * (s / (factor * n) - 1)] * n])

    return Law(rows)


def largest_of(n: int) -> Law:
    """max_a |z_a|: one of them is the largest, the others are below it."""

    def rows(s: np.ndarray) -> np.ndarray:
        below = erf(s / np.sqrt(2))
        density = 2 * n * norm.pdf(s) * below ** (n - 1)
        others = -2 * s * norm.pdf(s) / below
        return np.stack([density, *[density * ((s**2 - 1) + (n - 1) * others) / n] * n])

    return Law(rows)


def total(one: Law, other: Law, *, finer: int = 1) -> Law:
    """The sum of two numbers that are positive."""
    angle, weight = _panels(0.0, np.pi / 2, 3 * finer)
    sine, cosine = np.sin(angle), np.cos(angle)

    def rows(y: np.ndarray) -> np.ndarray:
        # s = y sin^2: roots in the denominators of both densities at zero become smooth.
        jacobian = 2 * y[..., None] * sine * cosine * weight
        return _joined(one.rows(y[..., None] * sine**2), other.rows(y[..., None] * cosine**2), jacobian)

    return Law(rows)


def difference(one: Law, other: Law, *, finer: int = 1) -> Law:
    """The difference of two numbers that are positive."""
    v, step = np.linspace(-40, 6.5, 240 * finer, retstep=True)
    s = np.exp(v)

    def rows(y: np.ndarray) -> np.ndarray:
        first, second = (np.maximum(sign * y, 0)[..., None] + s for sign in (1, -1))
        return _joined(one.rows(first), other.rows(second), step * s)

    return Law(rows, signed=True)


def product(one: Law, other: Law, *, finer: int = 1) -> Law:
    """The product of two numbers that are positive and as rarely large as |z| or a product of few of them."""
    share = np.linspace(0, 1, 200 * finer)

    def rows(y: np.ndarray) -> np.ndarray:
        low, high = np.log(y)[..., None] - 4, 4.0
        s = np.exp(low + share * (high - low))
        return _joined(one.rows(s), other.rows(y[..., None] / s), (high - low) * share[1])

    return Law(rows)


def _joined(one: np.ndarray, other: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    """Rows of a number of two independent ones, integrated over the last axis."""
    parts = [one[0] * other[0], *(row * other[0] for row in one[1:]), *(one[0] * row for row in other[1:])]
    return np.stack([(part * weight).sum(-1) for part in parts])


# -- links that are no law -------------------------------------------------------------------------------------------


def _wrapped(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles between 0 and pi; of a normal with |angle| = that modulo 2 pi, the weight, and it times z^2 - 1."""
    angle = (np.arange(count) + 0.5) * np.pi / count
    z = angle[:, None] + 2 * np.pi * np.arange(-3, 4)
    return angle, 2 * np.pi / count * norm.pdf(z).sum(1), 2 * np.pi / count * (norm.pdf(z) * (z**2 - 1)).sum(1)


def cosine(*, finer: int = 1) -> Answer:
    """cos z."""
    _, weight, excess = _wrapped(200 * finer)
    return Answer(weight, (excess / weight)[:, None, None])


def noisy_cosines(count: int, variance: float, *, finer: int = 1) -> Answer:
    """cos z_1 + ... + cos z_count and noise."""
    angle, weight, excess = _wrapped(32 * finer)
    value, density = np.cos(angle), weight
    for _ in range(count - 1):
        value, density = np.add.outer(value, np.cos(angle)), np.multiply.outer(density, weight)
    margin = count + 9 * np.sqrt(variance)
    y, step = np.linspace(-margin, margin, 300 * finer, retstep=True)
    first = (density / weight.reshape(-1, *[1] * (count - 1)) * excess.reshape(-1, *[1] * (count - 1))).ravel()
    blur = np.exp(-((y[:, None] - value.ravel()) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    rows = np.stack([blur @ density.ravel(), *[blur @ first] * count])
    return _answer(rows, np.full(len(y), step))


def two_factors(*, finer: int = 1) -> Answer:
    """z_1 z_2, of density K_0(|y|)/pi, where E[z_1^2 | y] = |y| K_1/K_0."""
    v, step = np.linspace(-40, 4, 400 * finer, retstep=True)
    y = np.exp(v)
    weight = step * y * kve(0, y) * np.exp(-y) / np.pi
    own = y * kve(1, y) / kve(0, y) - 1
    G = [np.stack([np.stack([own, both], -1), np.stack([both, own], -1)], -1) for both in (y, -y)]
    return Answer(np.tile(weight, 2), np.concatenate(G))


def two_noisy_factors(variance: float, *, finer: int = 1) -> Answer:
    """z_1 z_2 and noise: given z_1, y and z_2 are jointly normal."""
    z, weight = _panels(0.0, 9.0, 30 * finer)
    reach = 45.0
    y, step = np.linspace(-reach, reach, int(reach / (0.1 * np.sqrt(variance))) * finer, retstep=True)
    total_variance = z**2 + variance
    joint = 2 * weight * norm.pdf(z) * norm.pdf(y[:, None] / np.sqrt(total_variance)) / np.sqrt(total_variance)
    mean = z * y[:, None] / total_variance
    density = joint.sum(1)
    rows = [joint * (z**2 - 1), joint * z * mean, joint * (mean**2 + variance / total_variance - 1)]
    kept = density > _NO_DENSITY
    first, both, second = (row.sum(1)[kept] / density[kept] for row in rows)
    G = np.stack([np.stack([first, both], -1), np.stack([both, second], -1)], -1)
    return Answer(density[kept] * step, G)


def ratio(*, finer: int = 1) -> Answer:
    """z_1/z_2: the direction u up to a sign, at which z z^T is on average 2 u u^T."""
    angle = np.arange(64 * finer) * np.pi / (64 * finer)
    u = np.stack([np.cos(angle), np.sin(angle)], 1)
    return Answer(np.full(len(u), 1 / len(u)), 2 * u[:, :, None] * u[:, None, :] - np.eye(2))


def not_below_one(*, finer: int = 1) -> Answer:
    """max(z^2, 1): one value of positive probability, and z^2 itself."""
    z, weight = _panels(1.0, 12.0, 20 * finer)
    inside = 2 * ndtr(1.0) - 1
    values = np.append(z**2 - 1, -2 * norm.pdf(1.0) / inside)
    return Answer(np.append(2 * weight * norm.pdf(z), inside), values[:, None, None])


def quartic(*, finer: int = 1) -> Answer:
    """z^4 - 4 z^2: below zero z^2 and 4 - z^2 look the same, above it z^2 is known."""
    low, width = _panels(0.0, np.sqrt(2.0), 4 * finer)
    high, factor = np.sqrt(4 - low**2), low / np.sqrt(4 - low**2)  # the other root, and |dz/dz| along with y
    both = norm.pdf(low) + factor * norm.pdf(high)
    mean = (norm.pdf(low) * low**2 + factor * norm.pdf(high) * high**2) / both
    z, outer = _panels(2.0, 12.0, 20 * finer)
    weight = np.concatenate([2 * width * both, 2 * outer * norm.pdf(z)])
    return Answer(weight, (np.concatenate([mean, z**2]) - 1)[:, None, None])


def intervals(edges: Sequence[float]) -> Answer:
    """In which of the intervals between 0, ``edges`` and infinity |z| lies."""
    ends = np.array([0.0, *edges, 40.0])
    probability = 2 * np.diff(ndtr(ends))
    excess = -2 * np.diff(ends * norm.pdf(ends))
    return Answer(probability, (excess / probability)[:, None, None])


def ball(n: int, squared: float) -> Answer:
    """Whether z_1^2 + ... + z_n^2 exceeds a number."""
    inside, tilted = (chi2.cdf(squared, n + k) for k in (0, 2))  # E[z_1^2; inside] is P of n + 2 degrees
    values = np.array([tilted / inside - 1, (1 - tilted) / (1 - inside) - 1])
    return Answer(np.array([inside, 1 - inside]), values[:, None, None] * np.eye(n))


def shells(n: int, edges: Sequence[float]) -> Answer:
    """Between which of the numbers z_1^2 + ... + z_n^2 lies."""
    ends = np.array([0.0, *edges, np.inf])
    weight, tilted = (np.diff(chi2.cdf(ends, n + k)) for k in (0, 2))  # E[z_1^2; inside] is P of n + 2 degrees
    kept = weight > _NO_DENSITY
    values = tilted[kept] / weight[kept] - 1
    return Answer(weight[kept], values[:, None, None] * np.eye(n))


def how_many_large(n: int, edge: float, seen: Callable[[int], float]) -> Answer:
    """A function of how many |z_a| exceed a number."""
    one = intervals([edge])
    outcomes = list(all_pairs((0, 1), repeat=n))
    weights = np.array([np.prod(one.weight[list(outcome)]) for outcome in outcomes])
    G = np.array([np.diag(one.G[list(outcome), 0, 0]) for outcome in outcomes])
    return grouped(Answer(weights, G), [seen(sum(outcome)) for outcome in outcomes])


def sign_of_two_factors() -> Answer:
    """sign(z_1 z_2), which is right about E|z_1||z_2| = 2/pi."""
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    return Answer(np.full(2, 0.5), 2 / np.pi * np.stack([swap, -swap]))


def grouped(answer: Answer, outputs: Sequence[float]) -> Answer:
    """The answer to outputs of which several are the same."""
    values, which = np.unique(np.asarray(outputs), return_inverse=True)
    weight = np.bincount(which, answer.weight)
    sums = np.stack([(answer.weight[which == k, None, None] * answer.G[which == k]).sum(0) for k in range(len(values))])
    return Answer(weight, sums / weight[:, None, None])


def polynomial(n: int, G: Callable[[np.ndarray], np.ndarray]) -> Answer:
    """Where G is a polynomial of degree at most 4 of n normals, by Gauss-Hermite quadrature, exact to degree 11."""
    x, w = np.polynomial.hermite_e.hermegauss(6)
    z = np.stack(np.meshgrid(*[x] * n, indexing="ij"), -1).reshape(-1, n)
    weight = np.prod(np.stack(np.meshgrid(*[w] * n, indexing="ij"), -1).reshape(-1, n), 1)
    return Answer(weight / weight.sum(), G(z))


def diagonal(values: np.ndarray) -> np.ndarray:
    """Diagonal matrices (w, n, n) of rows (w, n)."""
    return values[:, :, None] * np.eye(values.shape[1])


def revealed(n: int) -> Answer:
    """Where z is seen up to a common sign."""
    return polynomial(n, lambda z: z[:, :, None] * z[:, None, :] - np.eye(n))


def gram(indices: int, tokens: int) -> Answer:
    """Z^T Z, whose Z is uniform on an orbit of rotations: E[z_im z_kn] = delta_ik (Z^T Z)_mn / P."""

    def G(z: np.ndarray) -> np.ndarray:
        Z = z.reshape(-1, indices, tokens)
        inner = np.einsum("yim,yin->ymn", Z, Z) / indices - np.eye(tokens)
        blocks = np.einsum("ik,ymn->yimkn", np.eye(indices), inner)
        return blocks.reshape(len(z), indices * tokens, indices * tokens)

    return polynomial(indices * tokens, G)
