"""Averages at any overlap without posteriors, for outputs of few numbers: from draws grouped by their output.

Given a field omega, indices are z = omega + V^{1/2} u with u standard normal. Up to factors V^{-1/2}, the score g and
its Jacobian G are the means of u and u u^T - 1 over the u with the same output (G only where g vanishes: in directions
without overlap that are not learned at any alpha). Such means are estimated by means over neighbours among draws of u
sorted by their output; see :mod:`sorted_kernel`, and :mod:`by_output` for several numbers. Only values of a link are
needed. All draws and fields stay the same at every overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from ....numerics.linear_algebra import mixed_rows, psd_sqrt
from ....numerics.quadrature import sobol_uniforms
from ....numerics.threads import in_threads
from ... import streams
from ...channels.links.link_channel import LinkChannel
from ...channels.protocol import HALF_WRONG, Averager, Averages
from ...channels.row_symmetry import RowSymmetry
from ..averages import symmetric_growth
from ..nodes import Nodes
from .by_output import ByOutput, CorrectedDraws, SortedDraws, divided_draws, labelled_draws
from .evidence import Evidence, evidence_at_zero, evidence_gained
from .sorted_outputs import window_edges

#: Numbers of fields per randomisation, of draws in each list of a field, of lists of a field, and of randomisations.
_FIELDS, _DRAWS, _LISTS, _RANDOMISATIONS = 2**6, 2**10, 3, 8
#: Number of fields in the one randomisation of the dynamics; number of draws in its lists, doubled for more than two
#: outputs; number of draws in a list for reported numbers.
_FEW_FIELDS, _FEW_DRAWS, _MANY_DRAWS = 2**7, 2**9, 2**12
#: Relative bias of averages from ``_MANY_DRAWS`` draws sorted by one output, measured against quadratures and longer
#: lists. It is inversely proportional to the number of draws.
_ACCURACY = 3e-4
#: Smallest number of parts of a sequence of draws, in random order. With fewer, errors of lists would correlate.
_SHUFFLED = 2**6
#: Number of fields that a thread processes at a time.
_AT_ONCE = 2**5
#: Largest number of blocks, and number of blocks with ``_MANY_DRAWS`` draws that stay in memory, 200 MB each.
_MOST_BLOCKS, _KEPT = 16, 2
#: Increase of E|u|^2 in the wider half of the draws. Without it extreme outputs, where G is large, would have too few
#: neighbours.
_WIDER = 4.0
#: At zero overlap, where one field suffices: largest factor by which its lists are longer, and largest product of this
#: factor and the number of averaged columns, which bounds the memory.
_LONGER_AT_ZERO, _COLUMNS_AT_ZERO = 2**4, 2**8
#: Number of draws for the axes of the outputs; variance above which an axis counts, if every output has variance one;
#: and smallest principal variance up to which principal axes replace the outputs, because these are too similar.
_SEEN, _VARIES, _ALIKE = 2**10, 1e-9, 1e-2
#: As in :func:`window_edges`: smallest, largest and share. In smaller windows the weighted means have a bias, in larger
#: ones they are too smooth.
_WINDOWS = 4, 32, 1


class SortedAverager(Averager):
    """Averages over data from fields omega, and from draws of indices given each field, without posteriors.

    Parameters
    ----------
    channel : Channel
        A channel whose observations are few numbers each.
    fields : int
        Number of fields per randomisation, a power of two.
    draws : int
        Number of draws in each list of a field, a power of two.
    randomisations : int
    seed : int
    block : int
        Number of the part of the long sequences of fields and draws that is used.
    """

    stochastic = True

    def __init__(
        self,
        channel: LinkChannel,
        fields: int = _FIELDS,
        draws: int = _DRAWS,
        randomisations: int = _RANDOMISATIONS,
        seed: int = streams.SORTED_FIELDS,
        block: int = 0,
    ) -> None:
        self.channel, self._fields, self._draws = channel, fields, draws
        self._randomisations, self._seed, self._block = randomisations, seed, block
        self._axes, self._symmetry = output_axes(channel), channel.output_symmetry
        self._last: tuple[bytes, list[ByOutput]] = b"", []

    @cached_property
    def accuracy(self) -> float:
        """Relative systematic error of E[g g^T] (g: score).

        If a bias is corrected, it is half the effect of this on the trace at overlap I/2, on one randomisation.
        """
        if self.uncorrected is None:
            return _ACCURACY * _MANY_DRAWS / self._draws
        one = SortedAverager(self.channel, self._fields, self._draws, 1, self._seed)
        V = 0.5 * np.eye(self.channel.indices)
        assert one.uncorrected is not None
        better, worse = (np.trace(average(V).second_moment[0]) for average in (one, one.uncorrected))
        return HALF_WRONG * abs(better - worse) / better

    @cached_property
    def uncorrected(self) -> SortedAverager | None:
        return _Uncorrected(self) if is_discrete(self.channel) or self._axes.shape[1] > 1 else None

    @cached_property
    def _normals(self) -> list[_Normals]:
        """Fields and draws of all randomisations in order, each in equally many parts of at most 32 fields."""
        drawn = in_threads(self._drawn, range(self._randomisations), first_alone=False)
        return [
            _Normals(*(one[start : start + _AT_ONCE] for one in normals))
            for normals in drawn
            for start in range(0, self._fields, _AT_ONCE)
        ]

    def _drawn(self, r: int) -> _Normals:
        """Return the fields and draws of randomisation number r."""
        P, M, noises = self.channel.indices, self.channel.tokens, self.channel.noises
        fields = ndtri(sobol_uniforms(self._fields, P * M, (self._seed, r), block=self._block))
        lists = [self._list((self._seed, r, n), P * M + noises) for n in range(1, 1 + _LISTS)]
        normals = np.stack(lists, axis=1)
        u, noise = normals[..., : P * M].copy(), normals[..., P * M :]
        variance = 1 + _WIDER / (P * M)
        u[:, :, self._draws // 2 :] *= np.sqrt(variance)
        log_ratio = 0.5 * (1 - 1 / variance) * (u**2).sum(-1) - 0.5 * P * M * np.log(variance)
        weights = 2 / (1 + np.exp(log_ratio))  # importance weights of the mixture of both halves
        of_draws = (u.reshape(*u.shape[:3], P, M), noise, weights)
        return _Normals(fields.reshape(-1, P, M), *(one.astype(np.float32) for one in of_draws))

    def _list(self, seed: tuple[int, ...], dim: int) -> np.ndarray:
        """Return normals (f, N, dim), one list of N draws per field: parts of a long sequence in random order.

        The errors of the parts have signs that are the same in every sequence. In the order of the sequences, products
        of the errors of two lists would not average out, neither over fields nor over blocks.
        """
        group = max(self._fields, _SHUFFLED)
        number, first = divmod(self._block * self._fields, group)
        order = np.random.default_rng((*seed, number)).permutation(group)[first : first + self._fields]
        if self._fields == group:
            whole = sobol_uniforms(group * self._draws, dim, seed, block=number)
            return ndtri(whole).reshape(group, self._draws, dim)[order]
        return ndtri([sobol_uniforms(self._draws, dim, seed, block=number * group + part) for part in order])

    def _by_output(self, V: np.ndarray) -> list[ByOutput]:
        """Return the draws at overlap I - V grouped by their outputs, one item per part of the fields.

        The last result is kept.
        """
        where, kept = self._last
        if where != V.tobytes():
            kept = in_threads(lambda part: self._brought_together(part, V), range(len(self._normals)))
            self._last = V.tobytes(), kept
        return kept

    def _brought_together(self, part: int, V: np.ndarray) -> ByOutput:
        normals = self._normals[part]
        y, weights = self._observed(normals, V), normals.weights
        if is_discrete(self.channel):
            return labelled_draws(y, weights)
        if y.shape[2] == 1:
            return SortedDraws(y[:, :, 0], weights, window_edges(self._draws, *_WINDOWS))
        return divided_draws(y, weights, (self._seed, self._block, part))

    def _observed(self, normals: _Normals, V: np.ndarray) -> np.ndarray:
        """Return the outputs (f, lists, k, N) of all draws at overlap I - V, along their k axes."""
        P, M = self.channel.indices, self.channel.tokens
        omega = mixed_rows(psd_sqrt(np.eye(P) - V, scale=1.0), normals.fields)
        Z = omega[:, None, None] + mixed_rows(psd_sqrt(V), normals.u.reshape(-1, P, M)).reshape(normals.u.shape)
        Z, noise, shape = Z.reshape(-1, P, M), normals.noise, Z.shape[:3]
        noise = noise.reshape(len(Z), noise.shape[-1])
        y = np.asarray(self.channel.observe(Z, noise), float) @ self._axes
        return np.ascontiguousarray(y.reshape(*shape, -1).swapaxes(2, 3))

    def _products(self, V: np.ndarray, along: np.ndarray, squares: bool) -> np.ndarray:
        """Return averages (R, C, C) of products of conditional means, given the output, of C columns.

        The columns are the components of v = ``along`` u with ``along`` (d, P) and u (P, M) the draws. With ``squares``
        products of two components, minus their means, follow as further columns.
        """
        return self._averaged(V, lambda together, u: together.products(_columns(u, along, squares)))

    def _averaged(self, V: np.ndarray, products: Callable[[ByOutput, np.ndarray], np.ndarray]) -> np.ndarray:
        parts = list(zip(self._by_output(V), (normals.u for normals in self._normals), strict=True))
        found = np.stack(in_threads(lambda part: products(*part), parts, first_alone=False))
        found = found.reshape(self._randomisations, -1, *found.shape[1:]).sum(1) / self._fields
        return 0.5 * (found + np.swapaxes(found, 1, 2))

    def __call__(self, V: np.ndarray) -> Averages:
        P, M = self.channel.indices, self.channel.tokens
        found = self._products(V, np.linalg.inv(psd_sqrt(V)), squares=False)
        moments = np.einsum("rpmqm->rpq", found.reshape(-1, P, M, P, M))
        moments = self._symmetry.of(V).averaged(moments * self.channel.overlap_mask)
        # Evidence and curvatures would need posteriors.
        return Averages(moments, np.full(len(moments), np.nan), np.full((len(moments), P), np.nan))

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        M, d = self.channel.tokens, frame.shape[1]
        found = self._products(V, frame.T @ np.linalg.inv(psd_sqrt(V)), squares=True)
        size = d * M
        moments = np.einsum("rimjm->rij", found[:, :size, :size].reshape(-1, d, M, d, M))
        place = np.empty((size, size), int)
        i, j = np.tril_indices(size)
        place[i, j] = place[j, i] = size + np.arange(len(i))
        G = found[:, place.ravel()[:, None], place.ravel()].reshape(-1, *[d, M] * 4)
        operators = np.einsum("aij,rimknjmln,bkl->rab", basis, G, basis, optimize=True)
        return symmetric_growth(self._symmetry.of(V), frame, moments, operators)


class _Uncorrected(SortedAverager):
    """The averages of the :class:`SortedAverager` ``corrected``, from all its draws, without correction of the bias."""

    def __init__(self, corrected: SortedAverager) -> None:
        self._corrected, self.uncorrected = corrected, None
        self.channel, self._symmetry = corrected.channel, corrected.channel.output_symmetry

    def _products(self, V: np.ndarray, along: np.ndarray, squares: bool) -> np.ndarray:
        def of_all_draws(together: ByOutput, u: np.ndarray) -> np.ndarray:
            assert isinstance(together, CorrectedDraws)
            return together.uncorrected(_columns(u, along, squares))

        return self._corrected._averaged(V, of_all_draws)


class SortedNodes(Nodes):
    """Nodes that are fields omega and draws sorted by output, instead of observations and their posteriors.

    ``few`` is the number of fields for the dynamics.
    """

    channel: LinkChannel

    def __init__(self, channel: LinkChannel, seed: int = streams.SORTED_FIELDS, few: int = _FEW_FIELDS) -> None:
        super().__init__(channel, seed, few)
        self._outputs = output_axes(channel).shape[1]
        self._blocks: dict[int, SortedAverager] = {}
        self._better: dict[int, SortedAverager] = {}

    posteriors = False

    @property
    def noisy(self) -> bool:
        return True

    @property
    def biased(self) -> bool:
        return False

    @property
    def numbers(self) -> int:
        # Draws are in single precision. Counted: the kept blocks and one more, with outputs, their order and weights.
        draws, size = _RANDOMISATIONS * _FIELDS * _LISTS * _MANY_DRAWS, self.channel.indices * self.channel.tokens
        return (1 + _KEPT) * draws * (size + 5) // 2  # trees: half of the fields, twice the memory per draw

    @property
    def most_blocks(self) -> int:
        return _MOST_BLOCKS

    @property
    def symmetry(self) -> RowSymmetry:
        return self.channel.output_symmetry

    def for_plan(self, count: int) -> SortedAverager:
        return self.few

    @cached_property
    def few(self) -> SortedAverager:
        draws = _FEW_DRAWS * (1 if self._outputs <= 2 else 2)
        return SortedAverager(self.channel, self._few, draws, 1, self._seed + 1)

    def block(self, number: int, careful: bool = False) -> SortedAverager:
        return self._blocks.setdefault(number, self._block_of(_DRAWS, number))

    def better_block(self, number: int) -> SortedAverager:
        made = self._better.get(number) or self._block_of(_MANY_DRAWS, number)
        if number < _KEPT:
            self._better[number] = made
        return made

    def _block_of(self, draws: int, number: int) -> SortedAverager:
        fields = _FIELDS if self._outputs == 1 else _FIELDS // 2  # trees take longer
        return SortedAverager(self.channel, fields, draws, seed=self._seed, block=number)

    def block_at_zero(self, number: int) -> SortedAverager:
        size = self.channel.indices * self.channel.tokens
        longer = _COLUMNS_AT_ZERO // max(size**2 // 2, _COLUMNS_AT_ZERO // _LONGER_AT_ZERO)
        draws = _MANY_DRAWS * 2 ** int(np.log2(max(longer, 1)))
        return SortedAverager(self.channel, 1, draws, seed=self._seed, block=number)

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        return averages._replace(log_evidence=self._at_zero.rows + evidence_gained(self.block(0), V))

    def evidence_error(self, log_evidence: float) -> float:
        return self._at_zero.error + self.block(0).accuracy * abs(log_evidence - self._at_zero.rows.mean())

    @cached_property
    def _at_zero(self) -> Evidence:
        found = evidence_at_zero(self.channel, _RANDOMISATIONS)
        if found is not None:
            return found
        # From posteriors, averaged to as many rows. With posteriors from draws, the change by better ones is the error.
        nodes, V = Nodes(self.channel), np.eye(self.channel.indices)
        rows, error = nodes.block(0, careful=self.channel.stochastic)(V).log_evidence, 0.0
        if self.channel.stochastic:
            error = float(abs(rows.mean() - nodes.block(0)(V).log_evidence.mean()))
        return Evidence(rows.reshape(_RANDOMISATIONS, -1).mean(1), error)

    def others(self, number: int) -> SortedNodes:
        return SortedNodes(self.channel, self._seed + 2 * number, self._few)

    def more(self, factor: int) -> SortedNodes:
        return SortedNodes(self.channel, self._seed, factor * self._few)


class _Normals(NamedTuple):
    """Normals of fields (f, P, M) and of draws u (f, lists, N, P, M), observation noise and weights of the draws.

    Shapes of noise and weights: (f, lists, N, noises), (f, lists, N).
    """

    fields: np.ndarray
    u: np.ndarray
    noise: np.ndarray
    weights: np.ndarray


def is_discrete(channel: LinkChannel) -> bool:
    """Whether the outputs are discrete and without noise, so that they take few values only."""
    return channel.outputs == 0 and channel.noises == 0


@lru_cache(maxsize=64)
def output_axes(channel: LinkChannel) -> np.ndarray:
    """Return r axes (k, r) along which the k outputs vary: the unit matrix, or principal axes if nearly dependent."""
    P, M = channel.indices, channel.tokens
    normals = np.random.default_rng(streams.OUTPUT_AXES).standard_normal((_SEEN, P * M + channel.noises))
    y = np.asarray(channel.observe(normals[:, : P * M].reshape(-1, P, M), normals[:, P * M :]), float)
    if y.shape[1] == 1 or is_discrete(channel):
        return np.eye(y.shape[1])
    units = y.std(0)
    units[units == 0] = 1.0
    values, axes = np.linalg.eigh(np.cov(y / units, rowvar=False))
    known = 0 if channel.noises else int(channel.outputs)  # number of axes that exist, however small
    varies = (values > _VARIES) | (np.arange(len(values)) >= len(values) - known)
    return np.eye(y.shape[1]) if values[0] > _ALIKE else (axes / units[:, None])[:, varies]


def _columns(u: np.ndarray, along: np.ndarray, squares: bool) -> np.ndarray:
    """Return C columns (f, lists, N, C) of draws u (f, lists, N, P, M): the d M components of v = ``along`` (d, P) u.

    With ``squares`` products of two components, minus their means, follow.
    """
    P, M = u.shape[-2:]
    v = u.reshape(*u.shape[:3], P * M) @ np.kron(along, np.eye(M)).T.astype(u.dtype)
    if not squares:
        return v
    i, j = np.tril_indices(v.shape[-1])
    means = np.kron(along @ along.T, np.eye(M))[i, j].astype(u.dtype)
    return np.concatenate([v, v[..., i] * v[..., j] - means], -1)
