"""The kind of a link: whether it is affine or discrete, and the rank of its differential."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....numerics.precision import double_precision
from ....numerics.quadrature import sobol_normals, sobol_uniforms
from ... import streams
from ...models.observed_link import ObservedLink

#: Number of draws of the prior N(0, I) at which a link is examined, and number of points of each of two other kinds:
#: draws times _LARGER, and draws with one index replaced by a uniform number up to _FARTHEST standard deviations. With
#: fewer points, rare regions are missed in which the link is another function.
_DRAWS, _OTHERS = 2**13, 2**12
_LARGER, _FARTHEST = 2.0, 6.0
#: Factors that move points towards zero, where ranks are computed again: far out differentials may underflow.
_NEARER = (0.5, 0.2)
#: Smallest fraction of the draws at which a link must have finite derivatives.
_MOSTLY = 0.999
#: Size of a difference of outputs, in standard deviations of the noise, below which it is neglected; its effect on an
#: overlap is about the square of this number. Larger: weak outputs are lost. Smaller: rounding makes an affine output
#: appear not to be affine.
_HIDDEN = 1e-6
#: Largest difference of two values that count as equal, in units in the last place.
_ULPS = 8
#: Number of draws whose distinct values are counted; see ``alphabet`` and ``doubt`` of :class:`LinkKind`.
VALUES = 2**16
#: Most distinct values among these draws for which the output counts as discrete.
LARGEST_ALPHABET = 256


class LinkKind(NamedTuple):
    """Properties of a link, from its program and from its values and differentials at thousands of points.

    Attributes
    ----------
    outputs : int
        Number k of numbers that the link returns.
    rank : float
        Prior mean of the rank of the differential (k, n): n if the output fixes the n indices up to a finite set, 0 for
        discrete outputs.
    ranks : set of int
        The ranks that occur; more than one for a link that is constant on a region, such as a rectifier.
    matrix, offset : arrays or None
        B (k, n) and b (k,) if the link is B z + b.
    affine : tuple of bool
        Per coordinate of z, whether the link is affine in it at fixed other coordinates.
    alphabet : int
        Number of distinct outputs among 65536 draws.
    doubt : float
        Upper bound (95 % confidence) on the prior probability of the region where the link is of another kind; zero if
        the program of the link proves the kind.
    """

    outputs: int
    rank: float
    ranks: frozenset[int]
    matrix: np.ndarray | None
    offset: np.ndarray | None
    affine: tuple[bool, ...]
    alphabet: int
    doubt: float


@double_precision()
def link_kind(model: ObservedLink) -> LinkKind:
    """Return the kind of a model's link, examined at fixed points."""
    n = model.indices * model.tokens
    z = _places(n)
    J, y = model.differentials(z), model.values(z)
    finite = np.all(np.isfinite(np.concatenate([J.reshape(len(z), -1), y], 1)), axis=1)
    if not finite[:_DRAWS].mean() > _MOSTLY:
        raise ValueError(f"link must have finite derivatives almost everywhere, got {model.link!r}, which has not")
    prior = finite[:_DRAWS].sum()
    z, J, y = z[finite], J[finite], y[finite]
    ranks = _generic_ranks(model, z, J)
    draws = sobol_normals(VALUES, n, streams.LINK_PROBES)
    values = model.values(draws)
    scales = _scales(model, values)
    matrix, offset = _affine_map(z, J, y, ranks, draws, values, scales)
    affine = tuple(_is_affine_in(model, i, z, J, y, scales) for i in range(n))
    alphabet = _count_of_rows(values)
    # No draw of VALUES was an exception: with 95 % confidence the probability of exceptions is below 3/VALUES.
    doubt = 0.0 if model.analytic else 3 / VALUES
    mean = float(ranks[:prior].mean())
    return LinkKind(y.shape[1], mean, frozenset(map(int, ranks)), matrix, offset, affine, alphabet, doubt)


def _places(n: int) -> np.ndarray:
    """Return the points z (m, n) at which a link of n indices is examined; the first _DRAWS are draws of the prior."""
    draws = sobol_normals(_DRAWS, n, streams.LINK_PROBES)
    single = draws[:_OTHERS].copy()
    which = np.arange(_OTHERS) % n
    single[np.arange(_OTHERS), which] = _FARTHEST * (2 * sobol_uniforms(_OTHERS, 1, streams.LINK_PROBES)[:, 0] - 1)
    large = np.clip(_LARGER * draws[:_OTHERS], -_FARTHEST, _FARTHEST)
    return np.concatenate([draws, large, single])


def _generic_ranks(model: ObservedLink, z: np.ndarray, J: np.ndarray) -> np.ndarray:
    """Return per point z (m, n) the largest rank of the differential among all points with the same branches, (m,).

    J (m, k, n) are the differentials at z. On points with the same branches of the program the link is one analytic
    function, whose rank is constant except on a set of probability zero. A smaller rank comes from rounding, as in the
    tails of tanh. Points nearer to zero are therefore examined too. If branches are unknown, the ranks are those of J.
    """
    ranks = _ranks(J)
    if model.analytic:
        return np.full_like(ranks, ranks.max())
    places = np.concatenate([z, *(z * factor for factor in _NEARER)])
    branches = model.branches(places)
    if branches is None:
        return ranks
    found = np.concatenate([ranks, _ranks(np.nan_to_num(model.differentials(places[len(z) :])))])
    _, which = np.unique(branches, axis=0, return_inverse=True)
    largest = np.zeros(which.max() + 1, int)
    np.maximum.at(largest, which.ravel(), found)
    return largest[which.ravel()[: len(z)]]


def _ranks(J: np.ndarray) -> np.ndarray:
    """Return the ranks (m,) of matrices J (m, k, n), after scaling every row to length one."""
    length = np.sqrt((J**2).sum(2, keepdims=True))
    directions = J / np.where(length > 1e-290, length, np.inf)
    return (np.linalg.svd(directions, compute_uv=False) > 1e-7).sum(1)


class Scales(NamedTuple):
    """Sizes from which the tolerances for equal outputs are made.

    Attributes
    ----------
    unit : array (k,)
        Spread of each of the k outputs, at most one; tolerances for rounding are relative to it.
    hidden : float
        Largest difference that the noise hides, ``_HIDDEN`` of its standard deviation; zero without noise.
    """

    unit: np.ndarray
    hidden: float


def _scales(model: ObservedLink, values: np.ndarray) -> Scales:
    """Return the scales of k outputs, from their values (v, k) at v draws.

    Without noise :class:`ObservedLink` has divided every output by its own spread: all units are one. With noise it has
    divided all by the largest spread; units are then measured here.
    """
    if model.noise == 0:
        return Scales(np.ones(values.shape[1]), 0.0)
    quantiles = np.quantile(values[np.isfinite(values).all(1)], (0.0, 0.25, 0.75, 1.0), axis=0)
    apart = quantiles[2] - quantiles[1]
    unit = np.where(apart > 0, apart, quantiles[3] - quantiles[0])
    return Scales(np.minimum(unit, 1.0), _HIDDEN * float(np.sqrt(model.noise)))


def _affine_map(
    z: np.ndarray,
    J: np.ndarray,
    y: np.ndarray,
    ranks: np.ndarray,
    draws: np.ndarray,
    values: np.ndarray,
    scales: Scales,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return B (k, n) and b (k,) if the link is B z + b at all points, else None and None.

    The points are z (m, n), with differentials J (m, k, n), outputs y (m, k) and ranks (m,), and ``draws`` (v, n), with
    outputs ``values`` (v, k).
    """
    matrix, offset = J[0], y[0] - J[0] @ z[0]
    bound = np.maximum(1e-10 * (scales.unit + np.abs(matrix).max(1)), scales.hidden)
    if not ranks.all() or (np.abs(J - matrix).max((0, 2)) > bound).any():
        return None, None
    for there, found in ((z, y), (draws, values)):
        bound = np.maximum(1e-9 * (scales.unit + np.abs(found).max(0)), scales.hidden)
        if not (np.abs(found - there @ matrix.T - offset).max(0) <= bound).all():
            return None, None
    return matrix, offset


def _is_affine_in(model: ObservedLink, i: int, z: np.ndarray, J: np.ndarray, y: np.ndarray, scales: Scales) -> bool:
    """Return whether the link, with outputs y (m, k) and differentials J (m, k, n) at z (m, n), is affine in z_i."""
    moved = z.copy()
    moved[:, i] = _FARTHEST * np.sin(np.arange(len(z)))  # any values
    column = model.differentials(moved)[:, :, i]
    predicted = y + J[:, :, i] * (moved - z)[:, i, None]
    bent = np.abs(column - J[:, :, i])
    error = np.abs(model.values(moved) - predicted)
    steepest = np.maximum(1e-10 * (scales.unit + np.abs(J[:, :, i])), scales.hidden)
    largest = np.maximum(1e-9 * (scales.unit + np.abs(y) + np.abs(predicted)), scales.hidden)
    return bool((bent < steepest).all() and (error < largest).all())


def _count_of_rows(values: np.ndarray) -> int:
    """Return the number of distinct rows of values (v, k); numbers that differ by rounding count as equal."""
    rows = np.zeros(len(values), int)
    for column in values.T:
        labels = _labels(column)
        rows = np.unique(rows * (labels.max() + 1) + labels, return_inverse=True)[1]  # of numbers: fast
    return int(rows.max()) + 1


def _labels(values: np.ndarray) -> np.ndarray:
    """Return the rank 0, 1, ... of each of the values (v,) among the distinct ones; see ``_ULPS`` for equal values."""
    order = np.argsort(values)
    low, high = values[order][:-1], values[order][1:]
    with np.errstate(invalid="ignore"):
        same = (low == high) | (high - low <= _ULPS * np.spacing(np.minimum(abs(low), abs(high))))
    found = np.zeros(len(values), int)
    found[order[1:]] = np.cumsum(~same)
    return found
