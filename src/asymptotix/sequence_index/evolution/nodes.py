"""The nodes on which the averages of one channel are taken: few to follow the dynamics, blocks of many for a number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from time import perf_counter

import numpy as np

from .. import streams
from ..channels.protocol import Averager, Averages, Channel, Correction, OperatorAverager
from ..channels.row_symmetry import RowSymmetry
from .averages import averager

#: Nodes that follow the dynamics, and by how much they are more where what few ones lose may be there.
FEW, MORE = 2**11, 8
#: Nodes are added in blocks, each with so many nodes in each of eight randomisations, until the error is small enough.
BLOCK = 2**11
#: Fewer would make the error, which decides when to stop, itself uncertain: by 40 % with four. From draws nodes are
#: hardly better than random ones, and little is lost with more and shorter randomisations.
RANDOMISATIONS, RANDOMISATIONS_DRAWN = 8, 16
#: Blocks at most, and nodes in each of eight randomisations that correct averages with rough posteriors. These mostly
#: differ by one percent per sample from better ones: what is left of it is 1e-4 of E[g g^T]. Where that is felt there
#: are more of them.
MOST_BLOCKS, CORRECTING = 32, (2**8, 2**10)
#: Blocks at most for one number of a threshold, and where posteriors come from draws.
MOST_BLOCKS_OF_THRESHOLD, MOST_BLOCKS_DRAWN = 16, 4


class Nodes:
    """Averagers of a channel, each made once and kept.

    Parameters
    ----------
    channel : Channel
    seed : int
        Sets of nodes with different even seeds are independent.
    few : int, optional
        Number of nodes that follow the dynamics.
    rough : bool
        Posteriors are rough ones, for averages that are corrected and where no number is reported.
    """

    def __init__(
        self,
        channel: Channel,
        seed: int = streams.STATE_EVOLUTION_NODES,
        few: int | None = None,
        rough: bool = False,
    ) -> None:
        self.channel, self._seed, self._few, self._rough = channel, seed, FEW if few is None else few, rough
        self._made: dict[tuple[int, int, int, bool], Averager] = {}

    @property
    def noisy(self) -> bool:
        """Whether averages scatter around zero where they vanish."""
        return self.channel.stochastic

    @property
    def biased(self) -> bool:
        """Whether averages have a bias that their scatter does not show: that of posteriors from few draws."""
        return self.channel.stochastic

    @property
    def concurrent(self) -> bool:
        """Whether averages over several blocks may be taken at the same time."""
        return self.channel.concurrent

    @property
    def symmetry(self) -> RowSymmetry:
        """That of averages, as far as it is known."""
        return self.channel.symmetry

    @property
    def numbers(self) -> int:
        """How many numbers averages hold at once, about."""
        size = self.channel.indices * self.channel.tokens
        return 0 if self.exact else BLOCK * RANDOMISATIONS // self.channel.cost * 4 * size**2

    @property
    def most_blocks(self) -> int:
        """How many blocks there are at most for one number of a threshold."""
        return MOST_BLOCKS_DRAWN if self.channel.stochastic else MOST_BLOCKS_OF_THRESHOLD

    @cached_property
    def rough(self) -> Nodes:
        """The same nodes with rough posteriors, in less time; these themselves where the channel has no others."""
        if self._rough or self.channel.rough_accuracy is None:
            return self
        return Nodes(self.channel, self._seed, self._few, rough=True)

    def at(self, count: int, randomisations: int, block: int = 0, careful: bool = False) -> Averager:
        """Averages over ``count`` nodes in each of several randomisations; see :func:`averager`."""
        key = (count, randomisations, block, careful)
        if key not in self._made:
            seed, fields = self._seed + (randomisations == 1), self.channel.fields
            if randomisations > 1:  # for a number: more fields of as many observations
                count, fields = self.channel.more_fields * count, self.channel.more_fields * fields
            self._made[key] = averager(self.channel, count, randomisations, seed, block, careful, self._rough, fields)
        return self._made[key]

    @property
    def few(self) -> Averager:
        """Few nodes: enough to follow the dynamics, not to report a number."""
        return self.at(self._few // (self.channel.cost // 2 or 1), 1)

    def block(self, number: int, careful: bool = False) -> Averager:
        """Averages over one block of nodes; those of several blocks are independent enough to be averaged.

        ``careful`` ones, of posteriors from draws, have less bias.
        """
        randomisations = RANDOMISATIONS_DRAWN if self.channel.stochastic else RANDOMISATIONS
        count = max(1, BLOCK * RANDOMISATIONS // (randomisations * self.channel.cost))
        return self.at(count, randomisations, number, careful)

    def corrections(self, V: np.ndarray) -> Iterator[Correction]:
        """What these nodes change in rough blocks near V, on some beyond all blocks, then on more; none if none are."""
        if self.rough is self:
            return
        for count in CORRECTING:
            beyond = MOST_BLOCKS * BLOCK // count
            rough, better = (nodes.at(count, RANDOMISATIONS, beyond)(V) for nodes in (self.rough, self))
            yield Correction.between(rough, better)

    def operator_block(self, number: int) -> OperatorAverager:
        """As :meth:`block`, for a channel whose overlap is a matrix."""
        average = self.block(number)
        assert isinstance(average, OperatorAverager)
        return average

    def block_at_zero(self, number: int) -> OperatorAverager:
        """As :meth:`block`, for zero overlap alone."""
        return self.operator_block(number)

    def better_block(self, number: int) -> Averager:
        """As :meth:`block`, for numbers that are reported; it may take longer."""
        return self.block(number)

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        """Averages at V that know E log Z_out, too."""
        return averages

    def evidence_error(self, log_evidence: float) -> float:
        """By how much that may be wrong beyond the scatter of its rows."""
        found = self.block(0).accuracy * max(1.0, abs(log_evidence))  # a density has units
        return float(np.hypot(found, self.channel.volume_error)) if self.exact else found

    @cached_property
    def exact(self) -> bool:
        """Whether averages are quadratures without random nodes."""
        return self.channel.exact_averager() is not None

    @cached_property
    def seconds(self) -> float:
        """How long an average on few nodes takes, at half overlap; the first may have included compilation."""
        for v in (0.5, 0.4):
            begun = perf_counter()
            self.few(v * np.eye(self.channel.indices))
            took = perf_counter() - begun
        return took

    def affordable(self, count: int) -> int:
        """A number of nodes, reduced where one posterior costs milliseconds."""
        return max(count // self.channel.cost, 1)

    def others(self, number: int) -> Nodes:
        """As many independent nodes; 0 is this set."""
        return Nodes(self.channel, self._seed + 2 * number, self._few, self._rough)

    def more(self, factor: int) -> Nodes:
        """The same with so many times the nodes that follow the dynamics."""
        return Nodes(self.channel, self._seed, factor * self._few, self._rough)
