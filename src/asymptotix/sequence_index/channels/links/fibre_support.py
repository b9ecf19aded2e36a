"""Weighted draws on the fibre {phi(x) = y} of an observation, made once for all priors; see :mod:`supported`.

The link has one output. A chart c solves phi(x) = y for one coordinate, along a line on which all roots can be found,
and draws the others, F_c. These free coordinates come from a mixture that does not depend on the prior: standard
normals, and normals of many widths around the true indices, in all rows or in single rows. At any overlap some
components k are close to the posterior. The balance heuristic over charts and components gives every root the weight w,

    1/w = sum_{c,k} m_{ck} |J_c| q_k(x_{F_c}),

with m_{ck} draws from the component q_k in chart c, and J_c the derivative of phi in the solved coordinate. Around the
true indices most draws are in the charts whose coordinates move the output most there.

Few cells of a line contain a root. One compiled program examines all cells; others compute roots and weights for the
cells with a root. Their arrays have the axis of points last, because the processor computes along it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import mul
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from ....numerics.arrays import Array
from ....numerics.programs.compiled import compiled
from ..tools.line_roots import root_between
from ..tools.random_lists import kronecker_sequence, uniforms_from
from ..tools.unrolled import unrolled

#: Number of independent lists of points per sample; the jackknife over lists removes a bias.
LISTS = 4
#: Standard deviations of the components around the true indices: in all rows, and in some rows (others N(0, 1)).
_WIDTHS, _ROW_WIDTHS = (0.6, 0.3, 0.15, 0.07, 0.03, 0.012), (0.5, 0.2, 0.07)
#: Standard deviation of coordinates that are not around the truth, followed by all others in increasing order.
_ALL_WIDTHS = np.array([1.0, *sorted({*_WIDTHS, *_ROW_WIDTHS})])
#: Weight of the prior in the mixture, in units of the weight of a component in all rows.
_PRIOR = 4
#: Factor by which components in some rows weigh less if rows are exchangeable: overlaps of rows then rarely differ.
_EXCHANGEABLE = 3
#: Steps towards a root, and the largest relative residual of a root.
_STEPS, _CLOSE = 10, 1e-4
#: Number of brackets or lines in every call of a program: one number, so that few programs are compiled.
_PIECE = 2048
#: Number of points around the truth at which slopes are compared, and share of draws divided evenly among charts.
_LOOKS, _ANY_CHART = 16, 0.2


class Brackets(NamedTuple):
    """Intervals {base + s along, lower < s < upper} of r lines in R^D with one root each.

    ``base`` (D, r) has the solved coordinate at zero, ``along`` (D, r) is its unit vector, ``lower`` and ``upper`` are
    (r,). ``owner`` (r,) is the number of the list, sample * LISTS + list.
    """

    base: np.ndarray
    along: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    owner: np.ndarray

    def some(self, chosen: np.ndarray) -> Brackets:
        return Brackets(*(column[..., chosen] for column in self))


class FibreSupport:
    """Function that computes points and weights of the fibres of many observations.

    Parameters
    ----------
    phi : callable
        Function of the indices and the noise, from R^D to R^1.
    rows : array of int
        Index row of each of the first coordinates; the other coordinates are the noise.
    affine : sequence of bool
        Whether phi is affine in each of the D coordinates.
    exchangeable : bool
        Whether the output has a symmetry that moves any index row to any other.
    """

    def __init__(
        self,
        phi: Callable[[jax.Array], jax.Array],
        rows: np.ndarray,
        affine: Sequence[bool],
        exchangeable: bool = False,
    ) -> None:
        self._phi, self._affine = unrolled(phi), affine
        every = _components(rows, len(affine) - len(rows), _EXCHANGEABLE if exchangeable else 1)
        kinds, counts = np.unique(every, axis=0, return_counts=True)
        # Components around the truth in all rows come first.
        order = np.argsort(~(kinds[:, : len(rows)] > 0).all(1), kind="stable")
        self._kinds, self._frequency = kinds[order], counts[order] / counts.sum()
        self._sequence = np.repeat(np.arange(len(kinds)), counts[order])
        self._shares = compiled(jax.vmap(self._shares_of_charts))
        self._cells = compiled(self._flagged_cells)
        self._extrema = compiled(jax.vmap(self._extremum, -1))
        self._weighted = compiled(self._weighted_roots)

    def __call__(self, y: np.ndarray, truth: np.ndarray, keys: np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray]:
        """Return points x (samples, lists, J, D) with phi(x) = y, and log-weights (samples, lists, J).

        ``y`` (samples,) are the observations, ``truth`` (samples, D) the true indices and noise, ``keys`` the random
        keys of the samples. ``draws`` is the number of lines per list, over all charts. Entries without a point have
        log-weight -inf.
        """
        shares = np.array(self._shares(truth))
        bases, chart = self._drawn(truth, shares, np.asarray(keys), draws)
        crossing, turning = [], []
        for S in range(truth.shape[1]):
            for kept, found in zip((crossing, turning), self._on_chart(S, bases, chart == S, y, truth), strict=True):
                kept.append(found)
        roots = _joined(*crossing, *self._hidden(_joined(*turning), y))
        sample = roots.owner // LISTS
        around = np.ascontiguousarray(np.moveaxis(shares, 0, -1))[..., sample]
        x, log_weights = _in_pieces(self._weighted, *roots[:4], y[sample], truth[sample].T, around)
        return _by_list(x, log_weights - np.log(draws), roots.owner, len(y))

    def _shares_of_charts(self, truth: jax.Array) -> jax.Array:
        """Return the shares (widths, D) of the D charts in draws around ``truth`` (D,) in all rows, for every width.

        The share of a coordinate grows with its contribution to the variance of the output in such draws.
        """
        D, kinds = len(truth), self._kinds[: len(_WIDTHS)]
        normals, widths = ndtri((kronecker_sequence(_LOOKS, D) + 0.5) % 1.0), _ALL_WIDTHS[kinds]
        points = jnp.where(kinds > 0, truth, 0.0) + widths * normals[:, None]
        slopes = jax.vmap(jax.vmap(jax.grad(lambda x: self._phi(x)[0])))(points)
        moved = jnp.nan_to_num((widths * slopes) ** 2, posinf=0.0)
        total = moved.sum(-1, keepdims=True)
        share = jnp.where(total > 0, moved / jnp.where(total > 0, total, 1.0), 1 / D).mean(0)
        return _ANY_CHART / D + (1 - _ANY_CHART) * share

    def _drawn(
        self, truth: np.ndarray, shares: np.ndarray, keys: np.ndarray, draws: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return points of lines (samples, lists, draws, D), and which coordinate is solved (and zero) on each line.

        ``shares`` (samples, widths, D) come from :meth:`_shares_of_charts`. NumPy draws the points, because JAX's
        generators take longer to compile than everything else.
        """
        samples, D = truth.shape
        start = np.ascontiguousarray(keys).view(np.uint64)[:, 0]
        shifts = uniforms_from(start, LISTS * (D + 2)).reshape(samples, LISTS, 1, D + 2)
        place = (shifts[..., 0] * len(self._sequence)).astype(int) + np.arange(draws)
        component = self._sequence[place % len(self._sequence)]
        uniforms = (kronecker_sequence(draws, D + 1) + shifts[..., 1:]) % 1.0
        alike = np.full((samples, len(self._kinds) - shares.shape[1], D), 1 / D)
        ends = np.cumsum(np.concatenate([shares, alike], 1), -1)[np.arange(samples)[:, None, None], component]
        chart = (uniforms[..., :1] > ends[..., :-1]).sum(-1)
        kinds = self._kinds[component]
        mean = np.where(kinds > 0, truth[:, None, None], 0.0)
        bases = mean + _ALL_WIDTHS[kinds] * ndtri(uniforms[..., 1:].clip(1e-14, 1 - 1e-14))
        bases[chart[..., None] == np.arange(D)] = 0.0
        return bases, chart

    def _on_chart(
        self, S: int, bases: np.ndarray, chosen: np.ndarray, y: np.ndarray, truth: np.ndarray
    ) -> tuple[Brackets, Brackets]:
        """Return cells with a root, and cells that may hide two, of the lines along coordinate S.

        ``bases`` (samples, lists, draws, D) are all points; ``chosen`` (samples, lists, draws) marks the lines along S.
        """
        line = _line(truth[:, S])
        line = line[[0, -1]] if self._affine[S] else line  # one root at most
        sample, number, _ = np.nonzero(chosen)
        base, line, owner = np.ascontiguousarray(bases[chosen].T), line[:, sample], sample * LISTS + number
        along = np.eye(truth.shape[1])[S]
        found = []
        for flags in _in_pieces(partial(self._cells, along), base, line, y[sample]):
            cell, place = np.nonzero(flags)
            directions = np.repeat(along[:, None], len(place), 1)
            found.append(Brackets(base[:, place], directions, line[cell, place], line[cell + 1, place], owner[place]))
        return found[0], found[1]

    def _flagged_cells(
        self, along: jax.Array, base: jax.Array, line: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return in which cells (K - 1, m) phi - y changes its sign, and in which it turns before it reaches zero.

        Cells lie between values ``line`` (K, m) of the solved coordinate, on m lines base + s along.
        """

        def at(base: jax.Array, s: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.jvp(lambda s: self._residual(base, along, y, s), (s,), (1.0,))

        value, slope = jax.vmap(jax.vmap(at, (1, 0, 0)), (None, 0, None))(base, line, y)
        crossing = (value[1:] > 0) != (value[:-1] > 0)
        turning = (slope[1:] * slope[:-1] < 0) & (value[:-1] * slope[:-1] < 0)
        return crossing, turning & ~crossing

    def _hidden(self, turning: Brackets, y: np.ndarray) -> tuple[Brackets, Brackets]:
        """Return the lower and the upper parts of those cells in which phi - y has an extremum of the other sign."""
        place, hides = _in_pieces(self._extrema, *turning[:4], y[turning.owner // LISTS])
        return turning._replace(upper=place).some(hides), turning._replace(lower=place).some(hides)

    def _extremum(
        self, base: jax.Array, along: jax.Array, lower: jax.Array, upper: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        residual = partial(self._residual, base, along, y)
        place = root_between(jax.grad(residual), lower, upper, _STEPS)
        return place, residual(place) * residual(lower) < 0

    def _weighted_roots(
        self,
        base: jax.Array,
        along: jax.Array,
        lower: jax.Array,
        upper: jax.Array,
        y: jax.Array,
        truth: jax.Array,
        shares: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the roots (D, r) in r brackets and their log-weights (r,); ``shares`` of charts are (widths, D, r)."""

        def root(
            base: jax.Array, along: jax.Array, lower: jax.Array, upper: jax.Array, y: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            residual = partial(self._residual, base, along, y)
            x = base + root_between(residual, lower, upper, _STEPS) * along
            value, slopes = jax.value_and_grad(lambda x: self._phi(x)[0])(x)
            return x, slopes, jnp.abs(value - y) < _CLOSE * (1 + jnp.abs(y))  # a jump across y is no root

        x, slopes, close = jax.vmap(root, -1, (-1, -1, -1))(base, along, lower, upper, y)
        balance = (jnp.abs(slopes) * _densities(self._kinds, self._frequency, x, truth, shares)).sum(0)
        good = close & jnp.isfinite(balance) & (balance > 0)
        return x, jnp.where(good, -jnp.log(jnp.where(good, balance, 1.0)), -jnp.inf)

    def _residual(self, base: jax.Array, along: jax.Array, y: jax.Array, s: jax.Array) -> jax.Array:
        return self._phi(base + s * along)[0] - y


def _components(rows: np.ndarray, noises: int, weight: int) -> np.ndarray:
    """Return for G components the places (G, D) of their D widths in _ALL_WIDTHS; 0 stands for N(0, 1).

    ``rows`` are the index rows of the coordinates before ``noises`` coordinates of noise. All components have the same
    weight; components in all rows and the prior are repeated, in proportion to ``weight``.
    """
    # With more rows there are more components in some rows; without this factor fewer points would be near in all.
    share = weight * max(1, rows.max())
    narrow = [(np.ones(len(rows), bool), width) for width in [*_WIDTHS] * share]
    if rows.max() > 0:
        for row in range(rows.max() + 1):
            chosen = [rows == row] if rows.max() == 1 else [rows == row, rows != row]
            narrow += [(mask, width) for mask in chosen for width in _ROW_WIDTHS]
    kinds = [mask * int(np.searchsorted(_ALL_WIDTHS[1:], width) + 1) for mask, width in narrow]
    kinds += [np.zeros(len(rows), int)] * (weight * _PRIOR)
    return np.pad(np.array(kinds), ((0, 0), (0, noises)))


def _densities(
    kinds: np.ndarray, frequency: np.ndarray, x: jax.Array, truth: jax.Array, shares: jax.Array
) -> jax.Array:
    """Return for each of D charts the density (D, r) of its drawn coordinates at points x (D, r), times its share.

    ``kinds`` (G, D) are places in _ALL_WIDTHS of G components with weights ``frequency`` (G,) and centres ``truth``
    (D, r). ``shares`` (widths, D, r) are the charts' shares of the first components; charts share the others evenly.

    Products of one-dimensional densities are used, because exponentials take longest. Where narrow densities vanish by
    rounding, the density of the prior does not.
    """
    D = len(x)
    widths = _ALL_WIDTHS[:, None, None]
    centre = jnp.where(np.arange(len(widths))[:, None, None] > 0, truth, 0.0)
    single = jnp.exp(-0.5 * ((x - centre) / widths) ** 2) / (np.sqrt(2 * np.pi) * widths)
    total = [jnp.zeros_like(x[0])] * D
    for number, (kind, often) in enumerate(zip(kinds, frequency, strict=True)):
        for S in range(D):
            factors = [single[kind[i], i] for i in range(D) if i != S]
            total[S] += often * (shares[number, S] if number < len(shares) else 1 / D) * reduce(mul, factors)
    return jnp.stack(total)


def _line(truth: np.ndarray) -> np.ndarray:
    """Return values (K, m) of a coordinate between which roots are searched, dense around its true values (m,)."""
    close = np.geomspace(0.01, 1.0, 6)[:, None]
    even = np.repeat(np.linspace(-5.7, 5.7, 25)[:, None], len(truth), 1)
    return np.sort(np.concatenate([even, truth + close, truth - close]), 0)


def _joined(*parts: Brackets) -> Brackets:
    return Brackets(*(np.concatenate(columns, -1) for columns in zip(*parts, strict=True)))


def _in_pieces(program: Callable[..., Sequence[Array]], *columns: np.ndarray) -> list[np.ndarray]:
    """Return the results of ``program`` for ``columns`` (..., r), called on _PIECE of the r entries at a time."""
    count = columns[0].shape[-1]
    whole = -(-max(count, 1) // _PIECE) * _PIECE
    # The last piece is filled up with zeros, whose results are dropped.
    filled = [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, whole - count)]) for x in columns]
    parts = [program(*(x[..., at : at + _PIECE] for x in filled)) for at in range(0, whole, _PIECE)]
    return [np.concatenate(part, -1)[..., :count] for part in zip(*parts, strict=True)]


def _by_list(x: np.ndarray, log_weights: np.ndarray, owner: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points x (D, r) arranged by list, (samples, lists, J, D), and their log-weights (samples, lists, J).

    ``owner`` (r,) are numbers of lists as in :class:`Brackets`. Log-weights are -inf in entries without a point, and in
    all lists of a sample of which one has no points.
    """
    good = np.flatnonzero(np.isfinite(log_weights))
    order = good[np.argsort(owner[good], kind="stable")]
    owner, counts = owner[order], np.bincount(owner[good], minlength=samples * LISTS)
    place = np.arange(len(order)) - (np.cumsum(counts) - counts)[owner]
    points = np.zeros((samples * LISTS, max(1, counts.max()), len(x)))
    weights = np.full(points.shape[:2], -np.inf)
    points[owner, place], weights[owner, place] = x[:, order].T, log_weights[order]
    # A list without points has lost some; the other lists of the sample may have lost some too.
    weights = weights.reshape(samples, LISTS, -1)
    weights[(counts.reshape(samples, LISTS) == 0).any(1)] = -np.inf
    return points.reshape(samples, LISTS, -1, len(x)), weights
