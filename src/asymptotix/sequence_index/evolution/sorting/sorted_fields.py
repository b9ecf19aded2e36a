"""Averages at any overlap where the output is one number, without any posterior: draws sorted by their output.

Given a field omega, indices are z = omega + V^{1/2} u, u standard normal, and g and G are means of u and u u^T - 1 over
those with the same output (of G where g vanishes: in directions that have no overlap and do not start by themselves).
Among draws of u sorted by their output such means are those of neighbours; see :mod:`sorted_kernel`. Nothing is asked
of a link but its values. All draws and fields stay the same at every overlap.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from ....numerics.linear_algebra import mixed_rows, psd_sqrt
from ....numerics.quadrature import sobol_uniforms
from ....numerics.threads import compiler_installed, in_threads
from ... import streams
from ...channels.links.link_channel import LinkChannel
from ...channels.protocol import Averages, Channel, OperatorAverager
from ..averages import symmetric_growth
from ..nodes import Nodes
from .sorted_outputs import window_edges

#: Fields per randomisation, draws in each list of a field, lists, and randomisations.
_FIELDS, _DRAWS, _LISTS, _RANDOMISATIONS = 2**6, 2**10, 3, 8
#: Fields and draws of the one randomisation that follows dynamics, and draws behind a number.
_FEW_FIELDS, _FEW_DRAWS, _MANY_DRAWS = 2**7, 2**9, 2**12
#: Relative bias of averages from many draws, seen against quadratures and longer lists; it falls like their number.
_ACCURACY = 3e-4
#: Fields at a time, in one of several threads.
_AT_ONCE = 2**5
#: Blocks at most, and of many draws those that are kept, 200 MB each.
_MOST_BLOCKS, _KEPT = 16, 2
#: Half of the draws are wider, by this much in the square of all of them: at the far ends, where G is large, the others
#: would have too few neighbours.
_WIDER = 4.0
#: Of windows of neighbours, see :func:`window_edges`. With smaller ones the weighted means of few draws have a bias,
#: with larger ones tables are too smooth.
_WINDOWS = 4, 32, 1


class SortedAverager(OperatorAverager):
    """Averages over fields, and over the draws of each of them.

    Parameters
    ----------
    channel : Channel
        Its observations are one number each.
    fields : int
        Per randomisation, a power of two.
    draws : int
        In each list of a field, a power of two.
    randomisations : int
    seed : int
    block : int
        Which part of long sequences of fields and draws.
    """

    stochastic = True

    def __init__(
        self,
        channel: Channel,
        fields: int = _FIELDS,
        draws: int = _DRAWS,
        randomisations: int = _RANDOMISATIONS,
        seed: int = streams.SORTED_FIELDS,
        block: int = 0,
    ) -> None:
        self.channel, self._fields, self._draws = channel, fields, draws
        self._randomisations, self._seed, self._block = randomisations, seed, block
        self.accuracy = _ACCURACY * _MANY_DRAWS / draws
        self._edges = window_edges(draws, *_WINDOWS)
        self._last: tuple[bytes, list[_SortedDraws]] = b"", []

    @cached_property
    def _normals(self) -> list[_Normals]:
        """Those of all randomisations, one after the other, each in as many parts."""
        drawn = in_threads(self._drawn, range(self._randomisations), first_alone=False)
        return [
            _Normals(*(one[start : start + _AT_ONCE] for one in normals))
            for normals in drawn
            for start in range(0, self._fields, _AT_ONCE)
        ]

    def _drawn(self, r: int) -> _Normals:
        """The fields and draws of one randomisation."""
        P, M, noises = self.channel.indices, self.channel.tokens, self.channel.noises
        fields = ndtri(sobol_uniforms(self._fields, P * M, (self._seed, r), block=self._block))
        lists = [
            ndtri(sobol_uniforms(self._fields * self._draws, P * M + noises, (self._seed, r, n), block=self._block))
            for n in range(1, 1 + _LISTS)
        ]
        normals = np.stack(lists).reshape(_LISTS, self._fields, self._draws, -1).swapaxes(0, 1)
        u, noise = normals[..., : P * M].copy(), normals[..., P * M :]
        variance = 1 + _WIDER / (P * M)
        u[:, :, self._draws // 2 :] *= np.sqrt(variance)
        log_ratio = 0.5 * (1 - 1 / variance) * (u**2).sum(-1) - 0.5 * P * M * np.log(variance)
        weights = 2 / (1 + np.exp(log_ratio))  # those of both halves as one mixture
        of_draws = (u.reshape(*u.shape[:3], P, M), noise, weights)
        return _Normals(fields.reshape(-1, P, M), *(one.astype(np.float32) for one in of_draws))

    def _sorted(self, V: np.ndarray) -> list[_SortedDraws]:
        """Outputs of the draws at overlap I - V and their order, in parts; kept for the next question."""
        where, kept = self._last
        if where != V.tobytes():
            kept = in_threads(lambda normals: self._sorted_by_output(normals, V), self._normals)
            self._last = V.tobytes(), kept
        return kept

    def _sorted_by_output(self, normals: _Normals, V: np.ndarray) -> _SortedDraws:
        P, M = self.channel.indices, self.channel.tokens
        omega = mixed_rows(psd_sqrt(np.eye(P) - V, scale=1.0), normals.fields)
        Z = omega[:, None, None] + mixed_rows(psd_sqrt(V), normals.u.reshape(-1, P, M)).reshape(normals.u.shape)
        Z, noise, shape = Z.reshape(-1, P, M), normals.noise, Z.shape[:3]
        noise = noise.reshape(len(Z), noise.shape[-1])
        y = np.asarray(self.channel.observe(Z, noise), float).reshape(shape)
        return _SortedDraws(y, np.argsort(y, axis=-1))

    def _products(self, V: np.ndarray, along: np.ndarray, squares: bool) -> np.ndarray:
        """Averages of products (R, C, C) of the conditional means of v = ``along`` (d, P) u.

        With ``squares``, those of its squares and products less their means come behind those of v itself.
        """
        from .sorted_kernel import products  # numba takes a while to import

        def of_part(part: tuple[_Normals, _SortedDraws]) -> np.ndarray:
            normals, (y, order) = part
            return products(y, order, _columns(normals.u, along, squares), normals.weights, self._edges)

        parts = list(zip(self._normals, self._sorted(V), strict=True))
        found = np.stack(in_threads(of_part, parts, first_alone=False))
        found = found.reshape(self._randomisations, -1, *found.shape[1:]).sum(1) / self._fields
        return 0.5 * (found + np.swapaxes(found, 1, 2))

    def __call__(self, V: np.ndarray) -> Averages:
        P, M = self.channel.indices, self.channel.tokens
        found = self._products(V, np.linalg.inv(psd_sqrt(V)), squares=False)
        moments = np.einsum("rpmqm->rpq", found.reshape(-1, P, M, P, M))
        moments = self.channel.symmetry.of(V).averaged(moments * self.channel.overlap_mask)
        # What posteriors would tell, of nothing that is asked for here.
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
        return symmetric_growth(self.channel.symmetry.of(V), frame, moments, operators)


class SortedNodes(Nodes):
    """Fields and draws that are sorted, instead of observations and their posteriors."""

    def __init__(self, channel: Channel, seed: int = streams.SORTED_FIELDS, few: int = _FEW_FIELDS) -> None:
        super().__init__(channel, seed, few)
        self._blocks: dict[int, SortedAverager] = {}
        self._better: dict[int, SortedAverager] = {}

    @property
    def noisy(self) -> bool:
        return True

    @property
    def biased(self) -> bool:
        return False

    @property
    def numbers(self) -> int:
        # Draws in single precision; one block beside those that are kept, outputs and their order, and weights.
        draws, size = _RANDOMISATIONS * _FIELDS * _LISTS * _MANY_DRAWS, self.channel.indices * self.channel.tokens
        return (1 + _KEPT) * draws * (size + 5) // 2

    @property
    def most_blocks(self) -> int:
        return _MOST_BLOCKS

    @staticmethod
    def suit(channel: Channel) -> bool:
        """Whether observations of a channel are one number, which does not take few values only."""
        if not isinstance(channel, LinkChannel) or channel.finest is None or channel.diagonal:
            return False
        one = channel.observe(np.ones((2, channel.indices, channel.tokens))).shape == (2, 1)
        return one and channel.groups is None and compiler_installed()

    @cached_property
    def few(self) -> SortedAverager:
        return SortedAverager(self.channel, self._few, _FEW_DRAWS, 1, self._seed + 1)

    def block(self, number: int, careful: bool = False) -> SortedAverager:
        return self._blocks.setdefault(number, SortedAverager(self.channel, seed=self._seed, block=number))

    def better_block(self, number: int) -> SortedAverager:
        made = self._better.get(number) or SortedAverager(
            self.channel, draws=_MANY_DRAWS, seed=self._seed, block=number
        )
        if number < _KEPT:
            self._better[number] = made
        return made

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        return averages._replace(log_evidence=self._posteriors.block(0)(V).log_evidence)

    @cached_property
    def _posteriors(self) -> Nodes:
        return Nodes(self.channel)

    def others(self, number: int) -> SortedNodes:
        return SortedNodes(self.channel, self._seed + 2 * number, self._few)

    def more(self, factor: int) -> SortedNodes:
        return SortedNodes(self.channel, self._seed, factor * self._few)


class _Normals(NamedTuple):
    """Of fields (f, P, M); of draws u (f, lists, N, P, M), noise (f, lists, N, noises) and weights (f, lists, N)."""

    fields: np.ndarray
    u: np.ndarray
    noise: np.ndarray
    weights: np.ndarray


class _SortedDraws(NamedTuple):
    """Outputs (f, lists, N) and their ascending order."""

    y: np.ndarray
    order: np.ndarray


def _columns(u: np.ndarray, along: np.ndarray, squares: bool) -> np.ndarray:
    """Of draws u (f, lists, N, P, M) what is averaged, (f, lists, N, C); see :meth:`SortedAverager._products`."""
    P, M = u.shape[-2:]
    v = u.reshape(*u.shape[:3], P * M) @ np.kron(along, np.eye(M)).T.astype(u.dtype)
    if not squares:
        return v
    i, j = np.tril_indices(v.shape[-1])
    means = np.kron(along @ along.T, np.eye(M))[i, j].astype(u.dtype)
    return np.concatenate([v, v[..., i] * v[..., j] - means], -1)
