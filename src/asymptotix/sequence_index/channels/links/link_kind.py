"""What kind of function a link is: affine, discrete, its rank, the coordinates in which it is affine."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ....numerics.compiled import compiled
from ....numerics.precision import double_precision
from ... import streams
from ...models.link import LinkModel
from .link_channel import flat_link

_PROBES = 64
_VALUES = 4096
#: More distinct values than this in 4096 draws is not taken for a finite number of values.
LARGEST_ALPHABET = 256


class LinkKind(NamedTuple):
    """Properties of a link, read off its values and differentials at random index matrices.

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
        Number of distinct outputs in 4096 draws.
    """

    outputs: int
    rank: float
    ranks: frozenset[int]
    matrix: np.ndarray | None
    offset: np.ndarray | None
    affine: tuple[bool, ...]
    alphabet: int


@double_precision()
def link_kind(model: LinkModel) -> LinkKind:
    """Examine the link of a model at fixed random points."""
    n = model.indices * model.tokens
    rng = np.random.default_rng(streams.LINK_PROBES)
    z = rng.standard_normal((_PROBES, n))
    one = partial(flat_link, model)
    link, differential = compiled(jax.vmap(one)), compiled(jax.vmap(jax.jacfwd(one)))
    J, y = np.asarray(differential(z)), np.asarray(link(z))
    if not np.isfinite(J).all():
        raise ValueError(f"link must have finite derivatives almost everywhere, got {model.link!r}, which has not")
    ranks = _ranks(J)
    if _only_saturates(J, ranks, np.asarray(differential(0.5 * z))):
        ranks = np.full_like(ranks, ranks.max())
    matrix = offset = None
    same = np.abs(J - J[0]).max() < 1e-10 * (1 + np.abs(J).max())
    if same and ranks.all() and np.abs(y - y[0] - (z - z[0]) @ J[0].T).max() < 1e-9 * (1 + np.abs(y).max()):
        matrix, offset = J[0], y[0] - J[0] @ z[0]
    affine = tuple(_is_affine_in(i, z, J, y, differential, link, rng) for i in range(n))
    draws = np.asarray(link(rng.standard_normal((_VALUES, n))))
    alphabet = len(np.unique(np.round(draws, 9), axis=0))
    return LinkKind(y.shape[1], float(ranks.mean()), frozenset(map(int, ranks)), matrix, offset, affine, alphabet)


def _ranks(J: np.ndarray) -> np.ndarray:
    """Ranks of matrices (m, k, n)."""
    singular = np.linalg.svd(J, compute_uv=False)
    return (singular > 1e-7 * np.maximum(singular[:, :1], 1e-300)).sum(1)


def _only_saturates(J: np.ndarray, ranks: np.ndarray, nearer: np.ndarray) -> bool:
    """Whether ranks differ only because some outputs hardly change far out, as those of tanh do.

    Then the rank is the same everywhere at the indices that are half as large, where the differentials are ``nearer``,
    and the small gradients have directions of their own. Outputs that are constant on a region have none.
    """
    length = np.sqrt((J**2).sum(2, keepdims=True))
    directions = J / np.where(length > 1e-290, length, 1.0)
    return bool((_ranks(nearer) == ranks.max()).all() and (_ranks(directions) >= ranks.max()).all())


def _is_affine_in(i: int, z: np.ndarray, J: np.ndarray, y: np.ndarray, differential: Any, link: Any, rng: Any) -> bool:
    moved = z.copy()
    moved[:, i] += 2 * rng.standard_normal(len(z))
    column = np.asarray(differential(jnp.asarray(moved)))[:, :, i]
    step = (moved - z)[:, i, None]
    predicted = y + J[:, :, i] * step
    error = np.abs(np.asarray(link(moved)) - predicted).max()
    return bool(np.abs(column - J[:, :, i]).max() < 1e-10 and error < 1e-9 * (1 + np.abs(y).max()))
