"""Splitting of a link into parts: each part of the outputs depends on its own index rows.

With independent noise on every output, and rows that are independent under the prior, the parts are learned
independently from the same data: E[g g^T] has no entries between parts, and every threshold is the threshold of one
part. Rows on which no output depends are never learned; the other rows are learned as if these rows did not exist.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from .. import streams
from .link import LinkModel, SequenceIndex
from .link_program import LinkProgram
from .observed_link import flat_link

#: Number of index matrices at which one row after the other is changed, and standard deviations of their entries. With
#: a smaller number, a row that shows only in rare samples counts as unread.
_PROBES, _SIZES = 2**14, (1.0, 2.0, 4.0)
#: A relative change of an output up to this counts as rounding.
_ROUNDING = 1e-12


class LinkPart(NamedTuple):
    """One independent part of a link: its index rows, ascending, and the model of the outputs that depend on them."""

    rows: tuple[int, ...]
    model: LinkModel


def link_parts(model: LinkModel) -> list[LinkPart]:
    """Return the parts of a model, in the order of their first rows; the model itself if all its rows are one part.

    Rows on which no output depends belong to no part.

    >>> [part.rows for part in link_parts(SequenceIndex(lambda Z: Z[:2] ** 2 + Z[1:], 3, 1))]
    [(0, 1, 2)]
    >>> [part.rows for part in link_parts(SequenceIndex(lambda Z: Z[:2] ** 2 + Z[2:] ** 3, 4, 1))]
    [(0, 2), (1, 3)]
    """
    depends, others = _dependence(model)
    joined = _joined_rows(depends)
    if len(joined) < 2:
        return [without_unread_rows(model)]
    places = [np.flatnonzero(depends[:, rows].any(axis=1)) for rows in joined]
    return [
        LinkPart(tuple(rows), _restricted(model, rows, others, kept)) for rows, kept in zip(joined, places, strict=True)
    ]


def without_unread_rows(model: LinkModel) -> LinkPart:
    """Return the model of the rows that its outputs depend on, with all outputs; the model itself if these are all.

    >>> without_unread_rows(SequenceIndex(lambda Z: Z[1] ** 2, 3, 1)).rows
    (1,)
    """
    depends, others = _dependence(model)
    rows = np.flatnonzero(depends.any(0)).tolist()
    if len(rows) in (0, model.indices):
        return LinkPart(tuple(range(model.indices)), model)
    return LinkPart(tuple(rows), _restricted(model, rows, others))


def doubt_of_unread_rows(model: LinkModel) -> float:
    """Return a bound (95 % confidence) on the fraction of samples whose output depends on a row counted as unread.

    The bound is zero if the link is analytic: such a link depends on a row almost everywhere or nowhere.
    """
    link = LinkProgram.of(functools.partial(flat_link, model), model.indices * model.tokens)
    return 0.0 if link.analytic else 3 / _PROBES


@double_precision()
def _dependence(model: LinkModel) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask (k, P), which output depends on which row, and an index matrix (P, M) used for the test."""
    return changed_outputs(model, streams.LINK_DEPENDENCE, axis=1)


def changed_outputs(model: LinkModel, seed: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of the outputs that change with each row (axis 1) or token (axis 2), and an index matrix (P, M).

    The mask is (k, P) or (k, M). The index matrix is one of those at which the link was evaluated.
    """
    rng = np.random.default_rng(seed)
    sizes = np.resize(_SIZES, (_PROBES, 1, 1))
    Z, moved = sizes * rng.standard_normal((2, _PROBES, model.indices, model.tokens))
    outputs = compiled(jax.vmap(lambda Z: jnp.ravel(jnp.asarray(model.evaluate(Z))).astype(float)))
    before = np.asarray(outputs(Z))
    unit = np.nanmedian(abs(before - np.nanmedian(before, axis=0)), axis=0)  # changes are in this unit
    columns = []
    for place in range(Z.shape[axis]):
        here = np.moveaxis(np.zeros(Z.shape, bool), axis, 0)
        here[place] = True
        changed = np.where(np.moveaxis(here, 0, axis), moved, Z)
        after = np.asarray(outputs(changed))
        # NaN on one side only counts as a change.
        same = np.isclose(after, before, rtol=_ROUNDING, atol=_ROUNDING * unit, equal_nan=True)
        columns.append((~same).any(0))
    return np.stack(columns, 1), Z[0]


def _joined_rows(depends: np.ndarray) -> list[list[int]]:
    """Return groups of rows that share an output, directly or through other rows, from a mask (outputs, rows)."""
    groups: list[set[int]] = []
    for output in depends:
        group = set(np.flatnonzero(output).tolist())
        if not group:
            continue
        group = group.union(*(other for other in groups if other & group))
        groups = [other for other in groups if not other & group] + [group]
    return sorted(sorted(group) for group in groups)


def _restricted(
    model: LinkModel, rows: list[int], others: np.ndarray, kept: np.ndarray | slice = slice(None)
) -> LinkModel:
    """Return the model of some ``rows`` and of the ``kept`` outputs.

    These outputs do not depend on the remaining rows, whose values are those of the index matrix ``others`` (P, M).
    """
    places = np.array(rows)

    def link(Z: jax.Array) -> jax.Array:
        whole = jnp.asarray(others, Z.dtype).at[places].set(Z)
        return jnp.ravel(jnp.asarray(model.evaluate(whole)))[kept]

    return SequenceIndex(link, len(rows), model.tokens, model.noise)
