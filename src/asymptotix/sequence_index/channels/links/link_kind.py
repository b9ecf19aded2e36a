"""What kind of function a link is: affine, discrete, its rank, the coordinates in which it is affine."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.compiled import compiled
from ....numerics.precision import double_precision
from ....numerics.quadrature import sobol_normals, sobol_uniforms
from ... import streams
from ...models.observed_link import ObservedLink, flat_link

#: Draws of the prior at which a link is examined, and other places: indices that are larger, and one index at a time
#: that is anything up to six standard deviations.
_DRAWS, _OTHERS = 2**13, 2**12
_LARGER, _FARTHEST = 2.0, 6.0
#: By how much indices are made smaller where it is asked for the rank of a differential without rounding.
_NEARER = (0.5, 0.2)
#: Share of the draws at which a link must have finite derivatives.
_MOSTLY = 0.999
#: Draws whose values are counted.
VALUES = 2**16
#: More distinct values than this among them is not taken for a finite number of values.
LARGEST_ALPHABET = 256


class LinkKind(NamedTuple):
    """Properties of a link, read off its program, and off its values and differentials at thousands of places.

    Attributes
    ----------
    outputs : int
        Number k of numbers that the link returns.
    rank : float
        Mean rank of the differential: n where the output fixes the indices up to a finite set, 0 for discrete outputs.
    ranks : set of int
        The ranks that occur; more than one for a link that is constant on a region, as a rectifier is.
    matrix, offset : arrays or None
        B (k, n) and b (k,) where the link is B z + b.
    affine : tuple of bool
        Per coordinate, whether the link is affine in it with the others held.
    alphabet : int
        Number of distinct outputs among 65536 draws.
    doubt : float
        Largest probability, with a confidence of 95 %, of a region of indices where the link is of another kind; zero
        where its program leaves no doubt.
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
    """Examine the link of a model at fixed places."""
    n = model.indices * model.tokens
    z, one = _places(n), partial(flat_link, model)
    link, differential = compiled(jax.vmap(one)), compiled(jax.vmap(jax.jacfwd(one)))
    J, y = np.asarray(differential(z)), np.asarray(link(z))
    finite = np.all(np.isfinite(np.concatenate([J.reshape(len(z), -1), y], 1)), axis=1)
    if not finite[:_DRAWS].mean() > _MOSTLY:
        raise ValueError(f"link must have finite derivatives almost everywhere, got {model.link!r}, which has not")
    prior = finite[:_DRAWS].sum()
    z, J, y = z[finite], J[finite], y[finite]
    ranks = _generic_ranks(model, z, J, differential)
    draws = sobol_normals(VALUES, n, streams.LINK_PROBES)
    values = np.asarray(link(draws))
    matrix, offset = _affine_map(z, J, y, ranks, draws, values)
    affine = tuple(_is_affine_in(i, z, J, y, differential, link) for i in range(n))
    alphabet = len(np.unique(np.round(values, 9), axis=0))
    # None of m draws was an exception: with a confidence of 95 % their probability is below 3/m.
    doubt = 0.0 if model.analytic else 3 / VALUES
    mean = float(ranks[:prior].mean())
    return LinkKind(y.shape[1], mean, frozenset(map(int, ranks)), matrix, offset, affine, alphabet, doubt)


def _places(n: int) -> np.ndarray:
    """Indices (m, n) at which a link is examined, draws of the prior first."""
    draws = sobol_normals(_DRAWS, n, streams.LINK_PROBES)
    single = draws[:_OTHERS].copy()
    which = np.arange(_OTHERS) % n
    single[np.arange(_OTHERS), which] = _FARTHEST * (2 * sobol_uniforms(_OTHERS, 1, streams.LINK_PROBES)[:, 0] - 1)
    large = np.clip(_LARGER * draws[:_OTHERS], -_FARTHEST, _FARTHEST)
    return np.concatenate([draws, large, single])


def _generic_ranks(model: ObservedLink, z: np.ndarray, J: np.ndarray, differential: Any) -> np.ndarray:
    """Ranks of the differentials J (m, k, n), the largest among the indices with the same branches.

    There the link is one analytic function, whose rank is the same but for places of no volume: a smaller one comes
    from rounding, as far out on tanh. So nearer indices are asked, too, as far as they have the branches of others.
    """
    ranks = _ranks(J)
    if model.analytic:
        return np.full_like(ranks, ranks.max())
    places = np.concatenate([z, *(z * factor for factor in _NEARER)])
    branches = model.branches(places)
    if branches is None:
        return ranks
    found = np.concatenate([ranks, _ranks(np.nan_to_num(np.asarray(differential(jnp.asarray(places[len(z) :])))))])
    _, which = np.unique(branches, axis=0, return_inverse=True)
    largest = np.zeros(which.max() + 1, int)
    np.maximum.at(largest, which.ravel(), found)
    return largest[which.ravel()[: len(z)]]


def _ranks(J: np.ndarray) -> np.ndarray:
    """Ranks of matrices (m, k, n), however different the lengths of their rows are."""
    length = np.sqrt((J**2).sum(2, keepdims=True))
    directions = J / np.where(length > 1e-290, length, np.inf)
    return (np.linalg.svd(directions, compute_uv=False) > 1e-7).sum(1)


def _affine_map(
    z: np.ndarray, J: np.ndarray, y: np.ndarray, ranks: np.ndarray, draws: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """B and b where the link is B z + b at all places and draws, else None and None."""
    matrix, offset = J[0], y[0] - J[0] @ z[0]
    if not ranks.all() or np.abs(J - matrix).max() > 1e-10 * (1 + np.abs(matrix).max()):
        return None, None
    for there, found in ((z, y), (draws, values)):
        if np.abs(found - there @ matrix.T - offset).max() > 1e-9 * (1 + np.abs(found).max()):
            return None, None
    return matrix, offset


def _is_affine_in(i: int, z: np.ndarray, J: np.ndarray, y: np.ndarray, differential: Any, link: Any) -> bool:
    moved = z.copy()
    moved[:, i] = _FARTHEST * np.sin(np.arange(len(z)))  # anywhere
    column = np.asarray(differential(jnp.asarray(moved)))[:, :, i]
    predicted = y + J[:, :, i] * (moved - z)[:, i, None]
    error = np.abs(np.asarray(link(moved)) - predicted) / (1 + np.abs(y) + np.abs(predicted))
    bent = np.abs(column - J[:, :, i]) / (1 + np.abs(J[:, :, i]))
    return bool(bent.max() < 1e-10 and error.max() < 1e-9)
