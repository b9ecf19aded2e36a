"""The nodes of averages over data: coarse nodes to follow the dynamics, blocks of many nodes for reported numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ...core.progress import Say
from .. import streams
from ..channels.protocol import Averager, Averages, Channel, Correction
from ..channels.row_symmetry import RowSymmetry
from .averages import averager

#: Number of coarse nodes, on which the dynamics runs, and the factor by which it grows where they may miss a branch.
FEW, MORE = 2**11, 8
#: Number of nodes of a block in each of eight randomisations. Blocks are added until the error is small enough.
BLOCK = 2**11
#: Number of randomisations, without and with posteriors from draws. With fewer the error, which decides when to stop,
#: is itself uncertain: by 40 % with four.
RANDOMISATIONS, RANDOMISATIONS_DRAWN = 8, 16
#: Largest number of blocks; and nodes in each randomisation for the correction of rough posteriors. After correction
#: the error is 1e-4 of E[g g^T]; if that is too large, the second number of nodes is used.
MOST_BLOCKS, CORRECTING = 32, (2**8, 2**10)
#: Largest number of blocks for one threshold, without and with posteriors from draws.
MOST_BLOCKS_OF_THRESHOLD, MOST_BLOCKS_DRAWN = 16, 4

Seen = TypeVar("Seen")
Found = TypeVar("Found")


class Judged(NamedTuple, Generic[Found]):
    """A result (``found``) from some blocks of nodes, its error, and whether these blocks are enough."""

    found: Found
    error: float
    enough: bool


def with_blocks(
    seen: list[Seen],
    judged: Callable[[list[Seen]], Judged[Found]],
    on_block: Callable[[Found, int], Iterable[Seen]],
    most: int,
    tolerance: float,
    say: Say,
) -> Judged[Found]:
    """Return a result from as many blocks of nodes as it needs to be accurate, but at most ``most``.

    Parameters
    ----------
    seen : list
        Evaluations on the first blocks; those on further blocks are appended.
    judged : callable
        Returns the result of a list of evaluations, and whether it is accurate enough.
    on_block : callable
        Takes the present result and the number of the next block; evaluates this block, or several from it on.
    tolerance : float
        For the progress texts only, which ``say`` receives.
    """
    while True:
        result = judged(seen)
        if result.enough or len(seen) >= most:
            return result
        say(f"block {len(seen) + 1} of at most {most}, error {result.error:.1e}, tolerance {tolerance:.1e}")
        seen.extend(on_block(result.found, len(seen)))


class Nodes:
    """The averagers (sets of nodes for averages over data) of a channel, each created once and kept.

    Parameters
    ----------
    channel : Channel
    seed : int
        Sets of nodes with different even seeds are independent.
    few : int, optional
        Number of coarse nodes, on which the dynamics runs.
    rough : bool
        Whether posteriors are fast but inaccurate: for averages that are corrected later or not reported.
    """

    #: Whether averages are over samples and their posteriors; otherwise over draws sorted by their output.
    posteriors: bool = True

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
        """Whether averages whose exact value is zero scatter around it."""
        return self.channel.stochastic

    @property
    def biased(self) -> bool:
        """Whether averages have a bias that the scatter of randomisations does not show, due to few draws."""
        return self.channel.stochastic

    @property
    def concurrent(self) -> bool:
        """Whether averages over several blocks may run at the same time."""
        return self.channel.concurrent

    @property
    def symmetry(self) -> RowSymmetry:
        """Known exchanges and sign changes of index rows that leave averages unchanged."""
        return self.channel.symmetry

    @property
    def numbers(self) -> int:
        """Approximate count of floating-point numbers that an average over one block holds in memory."""
        size = self.channel.indices * self.channel.tokens
        return 0 if self.exact else BLOCK * RANDOMISATIONS // self.channel.cost * 4 * size**2

    @property
    def most_blocks(self) -> int:
        """Largest number of blocks for one threshold."""
        return MOST_BLOCKS_DRAWN if self.channel.stochastic else MOST_BLOCKS_OF_THRESHOLD

    @cached_property
    def rough(self) -> Nodes:
        """These nodes with rough posteriors (fast, inaccurate); the object itself if the channel has none."""
        if self._rough or self.channel.rough_accuracy is None:
            return self
        return Nodes(self.channel, self._seed, self._few, rough=True)

    def at(self, count: int, randomisations: int, block: int = 0, careful: bool = False) -> Averager:
        """Return averages over ``count`` nodes in each of several randomisations; see :func:`averager`."""
        key = (count, randomisations, block, careful)
        if key not in self._made:
            seed, fields = self._seed + (randomisations == 1), self.channel.fields
            if randomisations > 1:  # for a reported number: more fields per observation, equally many observations
                count, fields = self.channel.more_fields * count, self.channel.more_fields * fields
            self._made[key] = averager(self.channel, count, randomisations, seed, block, careful, self._rough, fields)
        return self._made[key]

    @property
    def few(self) -> Averager:
        """Averages over the coarse nodes, accurate enough to follow the dynamics, but not to report a number."""
        return self.at(self._few // (self.channel.cost // 2 or 1), 1)

    def block(self, number: int, careful: bool = False) -> Averager:
        """Return averages over block ``number`` of nodes; the mean over several blocks has a smaller error.

        ``careful``: posteriors with few effective draws are computed again with more draws, which reduces the bias.
        """
        randomisations = RANDOMISATIONS_DRAWN if self.channel.stochastic else RANDOMISATIONS
        count = max(1, BLOCK * RANDOMISATIONS // (randomisations * self.channel.cost))
        return self.at(count, randomisations, number, careful)

    def corrections(self, V: np.ndarray) -> Iterator[Correction]:
        """Yield corrections for averages near V that use rough posteriors: one from few nodes, then one from more.

        Nothing is yielded if the nodes have no rough posteriors.
        """
        if self.rough is self:
            return
        for count in CORRECTING:
            beyond = MOST_BLOCKS * BLOCK // count
            rough, better = (nodes.at(count, RANDOMISATIONS, beyond)(V) for nodes in (self.rough, self))
            yield Correction.between(rough, better)

    def block_at_zero(self, number: int) -> Averager:
        """Return averages over block ``number`` of nodes, for zero overlap (V = I) only."""
        return self.block(number)

    def for_plan(self, count: int) -> Averager:
        """Return averages over about ``count`` posteriors, for the variances that GAMP takes from state evolution."""
        # Equivalent directions are recognised by the scatter between randomisations, so there must be several.
        split = 1 if self.channel.diagonal else 8
        return averager(self.channel.in_single_precision(), max(count // split, 64), split, seed=streams.PLAN_NODES)

    def better_block(self, number: int) -> Averager:
        """Return averages over block ``number`` for reported numbers; they may be slower than those of ``block``."""
        return self.block(number)

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        """Return the averages at V with E log Z_out (Z_out: evidence of an output) filled in if it is missing."""
        return averages

    def evidence_error(self, log_evidence: float) -> float:
        """Return the systematic error of E log Z_out (Z_out: evidence of an output); its value is ``log_evidence``."""
        found = self.block(0).accuracy * max(1.0, abs(log_evidence))  # in other units it may be zero
        return float(np.hypot(found, self.channel.volume_error)) if self.exact else found

    @cached_property
    def exact(self) -> bool:
        """Whether averages are deterministic quadratures, without random nodes."""
        return self.channel.exact_averager() is not None

    @cached_property
    def seconds(self) -> float:
        """Measured seconds for an average over the coarse nodes, without compilation."""
        for v in (0.5, 0.4):
            begun = perf_counter()
            self.few(v * np.eye(self.channel.indices))
            took = perf_counter() - begun
        return took

    def affordable(self, count: int) -> int:
        """Return ``count`` divided by the channel's cost factor, but at least 1: a posterior may take milliseconds."""
        return max(count // self.channel.cost, 1)

    def others(self, number: int) -> Nodes:
        """Return the independent set ``number`` of equally many nodes; 0 gives the same nodes."""
        return Nodes(self.channel, self._seed + 2 * number, self._few, self._rough)

    def more(self, factor: int) -> Nodes:
        """Return these nodes with ``factor`` times as many coarse nodes."""
        return Nodes(self.channel, self._seed, factor * self._few, self._rough)
