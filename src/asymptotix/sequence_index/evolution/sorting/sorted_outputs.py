"""The first instability where the output is one number, without any posterior: from draws sorted by their output.

At zero overlap g = E[z|y] and G = E[z z^T|y] - I depend on y alone (up to g g^T, which vanishes in every direction that
does not start by itself). Among draws of the prior sorted by y, the means of a window of neighbours are g and G at its
output, up to noise and to what the width of the window smooths. Such tables a and b, of independent draws, give the
averages of products with errors of second order,

    E[G G] = E[(z z^T - I) G_b(y)] + E[G_a(y) (z z^T - I)] - E[G_a(y) G_b(y)] + E[(G_a - G)(G_b - G)],

on nodes independent of both, where the last term, whose noise has mean zero, is left out. What the output does not show
of a change of rows, none of these moments does: they are averaged over all such changes.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from ....numerics.control_variates import ControlledMeans, hermite_polynomials, regressed
from ....numerics.linear_algebra import symmetric_basis
from ....numerics.quadrature import sobol_uniforms
from ....numerics.threads import in_threads
from ... import streams
from ...channels.protocol import Channel, Posterior
from ...channels.row_symmetry import RowSymmetry
from ..averages import squares_and_operators, symmetric_growth
from ..instability import NO_MOMENT, Instability, analysed

#: Draws of a table, nodes per randomisation, and numbers of randomisations after which the error decides.
_DRAWS, _NODES, _RANDOMISATIONS = 2**17, 2**14, (8, 16, 32, 64)
#: Of windows of neighbours, see :func:`window_edges`.
_WINDOWS = 16, 64, 8
#: Distinct outputs up to which draws are grouped by them.
FEW_VALUES = 64
#: Relative error beyond the scatter: what windows smooth alike in both tables, seen at jumps and at steep ends.
_SMOOTHED = 2.5e-4
_MOST_CONTROLS = 200


class Table(NamedTuple):
    """E[z|y] (w, n) and E[z z^T|y] (w, n, n) at outputs y (w,); between them linear, unless there are few values."""

    y: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def at(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both at outputs (m,)."""
        columns = np.concatenate([self.first, self.second.reshape(len(self.y), -1)], 1)
        values = np.stack([np.interp(y, self.y, column) for column in columns.T], 1)
        n = self.first.shape[1]
        return values[:, :n], values[:, n:].reshape(-1, n, n)


def instability_from_sorted_outputs(
    channel: Channel, tolerance: float, moment: np.ndarray | None = None
) -> Instability:
    """What grows at zero overlap, for observations that are one number; the rate to a relative ``tolerance``.

    ``moment`` is E[g g^T] (P, P) where it is known without noise: tables show only what stands out of theirs.
    """
    rows: list[ControlledMeans] = []
    P = channel.indices
    for count in _RANDOMISATIONS:
        rows += in_threads(partial(_randomisation, channel), range(len(rows), count))
        means = regressed(rows)
        moments, operators = means[:, : P * P].reshape(-1, P, P), means[:, P * P :]
        operators = operators.reshape(-1, *[P * (P + 1) // 2] * 2)
        moments = moments if moment is None else np.broadcast_to(moment, moments.shape)
        moments, operators = symmetric_growth(channel.output_symmetry, np.eye(P), moments, operators)
        found = analysed(moments, operators, np.eye(P), NO_MOMENT, moment is None)
        found = found._replace(error=float(np.hypot(found.error, _SMOOTHED * found.rate)))
        if found.starts_by_itself:  # the rate of the rest is asked for again where that is learned
            break
        # The last ones take as long as all before: only where the error is still large.
        allowed = tolerance if count < _RANDOMISATIONS[-2] else 2 * tolerance
        if found.error <= max(allowed, 1.5 * _SMOOTHED) * found.rate or found.rate == 0:
            break
    return found


@lru_cache(maxsize=_RANDOMISATIONS[-1])
def _randomisation(channel: Channel, number: int) -> ControlledMeans:
    """What averages to E[g g^T] (P, P) and to the operator F (b, b), one number after the other.

    Kept for the next question: once more with a moment that is known by then, or to another tolerance.
    """
    P, M, unseen = channel.indices, channel.tokens, unseen_symmetry(channel)
    a, b = (_table(*_draws(channel, _DRAWS, 3 * number + k)) for k in (0, 1))
    z, y = _draws(channel, _NODES, 3 * number + 2)
    own = z, z[:, :, None] * z[:, None, :]
    a, b = a.at(y), b.at(y)
    # Products take longest: the second and the third term are one, of G_a and the difference z z^T - G_b.
    beyond = own[0] - b[0], own[1] - b[1] + np.eye(P * M)
    own, a, b, beyond = (_as_posterior(*moments, P, M, unseen) for moments in (own, a, b, beyond))
    parts = (
        squares_and_operators([left, right], np.eye(P), np.eye(P), symmetric_basis(P))
        for left, right in ((own, b), (a, beyond))
    )
    squares, operators = (np.add(*both) for both in zip(*parts, strict=True))
    values = np.concatenate([squares.reshape(len(z), -1), operators.reshape(len(z), -1)], 1)
    return ControlledMeans.of(values, hermite_polynomials(z, _MOST_CONTROLS))


@lru_cache(maxsize=64)
def unseen_symmetry(channel: Channel) -> RowSymmetry:
    """Exchanges and changes of signs of rows that no output shows, so that posteriors at zero overlap have them too."""
    return channel.output_symmetry.unseen_by(
        lambda Z: channel.observe(Z, np.zeros((len(Z), channel.noises))), channel.tokens, streams.EVEN_LINK
    )


def _as_posterior(first: np.ndarray, second: np.ndarray, P: int, M: int, unseen: RowSymmetry) -> Posterior:
    m = len(first)
    return Posterior(np.zeros(m), *unseen.averaged_moments(first.reshape(m, P, M), second.reshape(m, P, M, P, M)))


def _draws(channel: Channel, count: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (count, n) and their outputs (count,)."""
    P, M = channel.indices, channel.tokens
    normals = ndtri(sobol_uniforms(count, P * M + channel.noises, (streams.SORTED_OUTPUTS, number)))
    z, noise = normals[:, : P * M], normals[:, P * M :]
    return z, np.asarray(channel.observe(z.reshape(-1, P, M), noise), float)[:, 0]


def _table(z: np.ndarray, y: np.ndarray) -> Table:
    order = np.argsort(y, kind="stable")
    z, y = z[order], y[order]
    new = np.append(True, np.diff(y) > 1e-9 * (1 + np.abs(y[1:])))
    edges = np.append(np.flatnonzero(new), len(y)) if new.sum() <= FEW_VALUES else window_edges(len(y), *_WINDOWS)
    counts, starts = np.diff(edges), edges[:-1]
    products = (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
    y, first, second = (np.add.reduceat(x, starts) / counts.reshape(-1, *[1] * (x.ndim - 1)) for x in (y, z, products))
    return Table(y, first, second.reshape(len(y), z.shape[1], -1))


def window_edges(count: int, smallest: int, largest: int, share: int) -> np.ndarray:
    """Where windows of sorted draws begin and end: evenly in the bulk, ever narrower towards both ends.

    They have at least ``smallest`` and at most ``largest`` draws, between both 1/``share`` of what is beyond them.
    """
    edges = [0]
    while edges[-1] < count // 2:
        edges.append(edges[-1] + int(np.clip(edges[-1] // share, smallest, largest)))
    left = np.array([edge for edge in edges if edge <= count // 2 - smallest])
    return np.unique(np.concatenate([left, [count // 2], count - left]))
