"""The first instability without posteriors, for outputs of one number: from draws sorted by their output.

At zero overlap the score g = E[z|y] and its Jacobian G = E[z z^T|y] - I depend on the output y alone (G up to g g^T,
which vanishes in every direction that is not learned at any alpha). Draws of the prior are sorted by y. Means over
windows of neighbours are g and G, up to noise and smoothing. Two such tables a and b, from independent draws, give
averages of products with errors of second order,

    E[G G] = E[(z z^T - I) G_b(y)] + E[G_a(y) (z z^T - I)] - E[G_a(y) G_b(y)] + E[(G_a - G)(G_b - G)],

on nodes independent of both. The last term is left out; its noise has mean zero. All these moments are averaged over
the symmetries of the output: the exchanges and sign changes of rows that leave it unchanged.
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

#: Numbers of draws of a table, of nodes per randomisation, and of randomisations after which the error is checked.
_DRAWS, _NODES, _RANDOMISATIONS = 2**17, 2**14, (8, 16, 32, 64)
#: Smallest and largest number of draws in a window, and its share near the ends: see :func:`window_edges`.
_WINDOWS = 16, 64, 8
#: Largest number of distinct outputs for which draws are grouped by value.
FEW_VALUES = 64
#: Relative systematic error by the smoothing that both tables share, as measured for links with jumps and steep ends.
_SMOOTHED = 2.5e-4
_MOST_CONTROLS = 200


class Table(NamedTuple):
    """Table of E[z|y] (w, n) and E[z z^T|y] (w, n, n) at outputs y (w,) for n indices, with linear interpolation.

    If y takes few values, each value has a row.
    """

    y: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def at(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return E[z|y] (m, n) and E[z z^T|y] (m, n, n) at outputs y (m,)."""
        columns = np.concatenate([self.first, self.second.reshape(len(self.y), -1)], 1)
        if len(self.y) == 1:
            values = np.repeat(columns, len(y), axis=0)
        else:
            left = np.clip(np.searchsorted(self.y, y) - 1, 0, len(self.y) - 2)
            gap = np.maximum(self.y[left + 1] - self.y[left], np.finfo(float).tiny)
            share = np.clip((y - self.y[left]) / gap, 0.0, 1.0)[:, None]
            values = (1 - share) * columns[left] + share * columns[left + 1]
        n = self.first.shape[1]
        return values[:, :n], values[:, n:].reshape(-1, n, n)


def instability_from_sorted_outputs(
    channel: Channel, tolerance: float, moment: np.ndarray | None = None
) -> Instability:
    """Return the instability of zero overlap for observations of one number, its rate to a relative ``tolerance``.

    ``moment`` is E[g g^T] (P, P) (g: score) if it is known without noise; sorted draws resolve no small moments.
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
        if found.starts_by_itself:  # the rate of the rest is computed later, with this learned
            break
        # The last step takes as long as all before. It is made only if the error exceeds twice the tolerance.
        allowed = tolerance if count < _RANDOMISATIONS[-2] else 2 * tolerance
        if found.error <= max(allowed, 1.5 * _SMOOTHED) * found.rate or found.rate == 0:
            break
    return found


@lru_cache(maxsize=_RANDOMISATIONS[-1])
def _randomisation(channel: Channel, number: int) -> ControlledMeans:
    """Return means of one randomisation: E[g g^T] (P, P) (g: score), the operator F (b, b), and control variates.

    The two matrices are flattened. The largest eigenvalue of F is the growth rate of small overlaps.
    """
    P, M, unseen = channel.indices, channel.tokens, unseen_symmetry(channel)
    a, b = (_table(*_draws(channel, _DRAWS, 3 * number + k)) for k in (0, 1))
    z, y = _draws(channel, _NODES, 3 * number + 2)
    own = z, z[:, :, None] * z[:, None, :]
    a, b = a.at(y), b.at(y)
    # Products take longest. The second and third term are computed as one, the product of G_a and z z^T - I - G_b.
    beyond = own[0] - b[0], own[1] - b[1] + np.eye(P * M)
    own, a, b, beyond = (_as_posterior(*moments, P, M, unseen) for moments in (own, a, b, beyond))
    squares, operators = squares_and_operators([(own, b), (a, beyond)], np.eye(P), np.eye(P), symmetric_basis(P))
    values = np.concatenate([squares.reshape(len(z), -1), operators.reshape(len(z), -1)], 1)
    return ControlledMeans.of(values, hermite_polynomials(z, _MOST_CONTROLS))


@lru_cache(maxsize=64)
def unseen_symmetry(channel: Channel) -> RowSymmetry:
    """Return the exchanges and sign changes of index rows that leave the outputs unchanged."""
    return channel.output_symmetry.unseen_by(
        lambda Z: channel.observe(Z, np.zeros((len(Z), channel.noises))), channel.tokens, streams.EVEN_LINK
    )


def _as_posterior(first: np.ndarray, second: np.ndarray, P: int, M: int, unseen: RowSymmetry) -> Posterior:
    m = len(first)
    return Posterior(np.zeros(m), *unseen.averaged_moments(first.reshape(m, P, M), second.reshape(m, P, M, P, M)))


def _draws(channel: Channel, count: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` draws of n = P M indices (count, n) and their outputs (count,); ``number`` sets the seed."""
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


@lru_cache(maxsize=8)
def window_edges(count: int, smallest: int, largest: int, share: int) -> np.ndarray:
    """Return the positions (w + 1,) where windows of ``count`` sorted draws begin and end: narrow at both ends.

    A window has 1/``share`` of the number of draws between it and the nearer end, but ``smallest`` to ``largest``.
    """
    edges = [0]
    while edges[-1] < count // 2:
        edges.append(edges[-1] + min(max(edges[-1] // share, smallest), largest))
    left = np.array([edge for edge in edges if edge <= count // 2 - smallest])
    return np.unique(np.concatenate([left, [count // 2], count - left]))
