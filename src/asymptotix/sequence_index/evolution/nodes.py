"""The nodes of a channel's averages: coarse ones to follow the dynamics, blocks of many nodes for reported numbers."""

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

#: Number of coarse nodes, which follow the dynamics, and the factor by which it grows where they may miss a branch.
FEW, MORE = 2**11, 8
#: Nodes of a block in each of eight randomisations. Blocks are added until the error is small enough.
BLOCK = 2**11
#: Number of randomisations, without and with posteriors from draws. Fewer make the error, which decides when to stop,
#: itself uncertain: by 40 % with four. With draws Sobol nodes are hardly better than random ones, so that more and
#: shorter randomisations lose little.
RANDOMISATIONS, RANDOMISATIONS_DRAWN = 8, 16
#: Largest number of blocks; and nodes in each of eight randomisations for the correction of rough posteriors. Rough
#: posteriors mostly differ by one percent per sample from better ones. After correction the error is 1e-4 of E[g g^T];
#: if that is too large, the second number of nodes is used.
MOST_BLOCKS, CORRECTING = 32, (2**8, 2**10)
#: Largest number of blocks for one number of a threshold, without and with posteriors from draws.
MOST_BLOCKS_OF_THRESHOLD, MOST_BLOCKS_DRAWN = 16, 4

Seen = TypeVar("Seen")
Found = TypeVar("Found")


class Judged(NamedTuple, Generic[Found]):
    """A result from some blocks of nodes, its error, and whether further blocks are not needed."""

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
    """Add blocks of nodes until a result is accurate enough, or until there are ``most`` of them.

    Parameters
    ----------
    seen : list
        Evaluations on the first blocks; further ones are appended.
    judged : callable
        Returns the result of these evaluations.
    on_block : callable
        Evaluates the block with a given number, or several from this number on, near a result.
    most : int
    tolerance : float
        For the text of the progress only.
    say : callable
    """
    while True:
        result = judged(seen)
        if result.enough or len(seen) >= most:
            return result
        say(f"block {len(seen) + 1} of at most {most}, error {result.error:.1e}, tolerance {tolerance:.1e}")
        seen.extend(on_block(result.found, len(seen)))


class Nodes:
    """The averagers of a channel, each created once and kept.

    Parameters
    ----------
    channel : Channel
    seed : int
        Sets of nodes with different even seeds are independent.
    few : int, optional
        Number of coarse nodes, which follow the dynamics.
    rough : bool
        Whether posteriors are fast but inaccurate: for averages that are corrected later or not reported.
    """

    #: Whether averages are over samples and their posteriors.
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
        """Whether averages have a bias that their scatter does not show, due to posteriors from few draws."""
        return self.channel.stochastic

    @property
    def concurrent(self) -> bool:
        """Whether averages over several blocks may run at the same time."""
        return self.channel.concurrent

    @property
    def symmetry(self) -> RowSymmetry:
        """Known symmetry of the averages under exchanges and sign changes of index rows."""
        return self.channel.symmetry

    @property
    def numbers(self) -> int:
        """Approximate count of numbers that one average holds in memory."""
        size = self.channel.indices * self.channel.tokens
        return 0 if self.exact else BLOCK * RANDOMISATIONS // self.channel.cost * 4 * size**2

    @property
    def most_blocks(self) -> int:
        """Largest number of blocks for one number of a threshold."""
        return MOST_BLOCKS_DRAWN if self.channel.stochastic else MOST_BLOCKS_OF_THRESHOLD

    @cached_property
    def rough(self) -> Nodes:
        """These nodes with rough posteriors, which are faster; the object itself if the channel has none."""
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
        """Averages over the coarse nodes: enough to follow the dynamics, not to report a number."""
        return self.at(self._few // (self.channel.cost // 2 or 1), 1)

    def block(self, number: int, careful: bool = False) -> Averager:
        """Return averages over block ``number``; the mean over several blocks has a smaller error.

        Blocks of one randomisation are consecutive parts of a Sobol sequence. ``careful``: more draws per posterior if
        few are effective, which reduces the bias.
        """
        randomisations = RANDOMISATIONS_DRAWN if self.channel.stochastic else RANDOMISATIONS
        count = max(1, BLOCK * RANDOMISATIONS // (randomisations * self.channel.cost))
        return self.at(count, randomisations, number, careful)

    def corrections(self, V: np.ndarray) -> Iterator[Correction]:
        """Yield corrections of averages from rough posteriors near V, from few nodes, then from more; perhaps none.

        The nodes of a correction belong to no block.
        """
        if self.rough is self:
            return
        for count in CORRECTING:
            beyond = MOST_BLOCKS * BLOCK // count
            rough, better = (nodes.at(count, RANDOMISATIONS, beyond)(V) for nodes in (self.rough, self))
            yield Correction.between(rough, better)

    def block_at_zero(self, number: int) -> Averager:
        """Return a block for averages at zero overlap only."""
        return self.block(number)

    def for_plan(self, count: int) -> Averager:
        """Return averages, over about ``count`` posteriors, for the variances that GAMP takes from state evolution."""
        # Equivalent directions are recognised by the scatter between randomisations, so there must be several.
        split = 1 if self.channel.diagonal else 8
        return averager(self.channel.in_single_precision(), max(count // split, 64), split, seed=streams.PLAN_NODES)

    def better_block(self, number: int) -> Averager:
        """Return a block for reported numbers; its averages may take longer."""
        return self.block(number)

    def with_evidence(self, averages: Averages, V: np.ndarray) -> Averages:
        """Return the averages at V with E log Z_out filled in."""
        return averages

    def evidence_error(self, log_evidence: float) -> float:
        """Return the systematic error of E log Z_out, which the scatter of its rows does not show."""
        found = self.block(0).accuracy * max(1.0, abs(log_evidence))  # in other units it may be zero
        return float(np.hypot(found, self.channel.volume_error)) if self.exact else found

    @cached_property
    def exact(self) -> bool:
        """Whether averages are deterministic quadratures, without random nodes."""
        return self.channel.exact_averager() is not None

    @cached_property
    def seconds(self) -> float:
        """Seconds for an average over the coarse nodes: the second of two, as the first may include compilation."""
        for v in (0.5, 0.4):
            begun = perf_counter()
            self.few(v * np.eye(self.channel.indices))
            took = perf_counter() - begun
        return took

    def affordable(self, count: int) -> int:
        """Return ``count``, divided by the channel's cost: one posterior may take milliseconds."""
        return max(count // self.channel.cost, 1)

    def others(self, number: int) -> Nodes:
        """Return equally many independent nodes; ``number`` 0 gives the same nodes."""
        return Nodes(self.channel, self._seed + 2 * number, self._few, self._rough)

    def more(self, factor: int) -> Nodes:
        """Return these nodes with ``factor`` times as many coarse nodes."""
        return Nodes(self.channel, self._seed, factor * self._few, self._rough)
