"""State evolution: the overlap that Bayes-optimal learning reaches at a given alpha.

    Qhat = alpha E[g_out g_out^T],       V' = (I/(1-l) + Qhat)^{-1},       Q' = I - V',

l the overlap of the side information (0: none). It is iterated as dynamics from a stated start, never solved as a
root: unstable fixed points are real and are not what an algorithm reaches. The state is the matrix of logits on the
learned subspace, the logarithm of Qhat; it is diagonal where each row of the weights may change its sign.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from ...numerics.iteration import fixed_point
from ...numerics.linear_algebra import from_logit, to_logit
from ..channels.attention.two_layers_at_zero import curvature_at_zero
from ..channels.mapped import MANY_EFFECTIVE_SAMPLES
from ..channels.protocol import Channel
from .averages import Averager, Averages, QuasiRandomAverager, SignAverager, averager
from .coordinates import PRECISIONS, Coordinates
from .instability import Instability, diagonal_instability, instability, sampled_instability_at_zero, visible_directions
from .refinement import State, refined

#: Overlap at which an unstable index enters the iteration. Below it the growth is linear, by alpha f_l a step.
SEED_OVERLAP = 0.02
#: Below this overlap an index counts as not learned.
NO_OVERLAP = 1e-5
#: Exact recovery is declared when every 1-q is below this and falls, at an alpha at which Q = I is stable.
NEARLY_EXACT = 2e-3
#: Relative distance from that alpha within which the fate of an overlap near one hangs on the quadrature.
MARGINAL = 1e-3
_COARSE = 2**11
#: Nodes are added in blocks, each with so many nodes in each of eight randomisations, until the error is small enough.
_BLOCK = 2**11
#: Fewer would make the error, which decides when to stop, itself uncertain: by 40 % with four. From draws nodes are
#: hardly better than random ones, and little is lost with more and shorter randomisations.
_RANDOMISATIONS, _RANDOMISATIONS_DRAWN = 8, 16
#: alpha E|g|^2 outside the learned subspace above which that subspace is turned, or enlarged.
_MISALIGNED = 1e-6
_TURNS = 4


class StateEvolution:
    """State evolution of one channel; keeps its quadrature nodes between calls.

    Parameters
    ----------
    channel : Channel
    side_information : float
        l in [0, 1): overlap of the teacher with the side information S = sqrt(l) W + sqrt(1-l) noise.
    """

    def __init__(
        self, channel: Channel, side_information: float = 0.0, seed: int = 0, coarse_nodes: int = _COARSE
    ) -> None:
        self.channel = channel
        self.side_information = side_information
        self._seed, self._coarse_nodes = seed, coarse_nodes
        self.at = lru_cache(maxsize=None)(self._averager)

    def _averager(self, count: int, randomisations: int, block: int = 0, careful: bool = False) -> Averager:
        return averager(self.channel, count, randomisations, self._seed + (randomisations == 1), block, careful)

    def block(self, number: int, careful: bool = False) -> Averager:
        """Averages over one block of nodes; those of several blocks are independent enough to be averaged.

        ``careful`` ones, of posteriors from draws, have less bias.
        """
        randomisations = _RANDOMISATIONS_DRAWN if self.channel.stochastic else _RANDOMISATIONS
        count = max(1, _BLOCK * _RANDOMISATIONS // (randomisations * self.channel.cost))
        return self.at(count, randomisations, number, careful)

    @property
    def coarse(self) -> Averager:
        """Few nodes: enough to follow the dynamics, not to report a number."""
        return self.at(self._coarse_nodes // (self.channel.cost // 2 or 1), 1)

    @property
    def deterministic(self) -> bool:
        """Whether averages are quadratures without random nodes."""
        return isinstance(self.coarse, SignAverager)

    def on_other_nodes(self, number: int) -> StateEvolution:
        """The same with independent nodes; 0 is this one."""
        return StateEvolution(self.channel, self.side_information, self._seed + 2 * number, self._coarse_nodes)

    def on_more_nodes(self, factor: int) -> StateEvolution:
        """The same with so many times the nodes that follow the dynamics."""
        return StateEvolution(self.channel, self.side_information, self._seed, factor * self._coarse_nodes)

    @cached_property
    def _follower_on_more_nodes(self) -> StateEvolution:
        """Follows what dies out on few nodes although it grows on many; from draws that takes too long."""
        return self if self.channel.stochastic or self.deterministic else self.on_more_nodes(8)

    def affordable(self, count: int) -> int:
        """A number of nodes, reduced where one posterior costs milliseconds."""
        return max(count // self.channel.cost, 1)

    @cached_property
    def visible(self) -> np.ndarray:
        """Orthonormal columns (P, p) of the directions on which the output depends at all."""
        P = self.channel.indices
        if self.channel.diagonal or P == 1:
            return np.eye(P)
        average = self.block(0) if self.channel.stochastic else self.coarse
        assert isinstance(average, QuasiRandomAverager)
        return visible_directions(average, P)

    @property
    def exact_recovery_bound(self) -> float:
        """p/r: full overlap in the p visible directions is stable above this alpha and unstable below.

        Infinite where no overlap is ever full: with noise, and for discrete outputs.
        """
        if self.channel.noises > 0 or self.channel.outputs == 0:
            return np.inf
        return self.visible.shape[1] / self.channel.outputs

    def precision(self, averages: Averages, alpha: float) -> np.ndarray:
        """Qhat and what the side information adds to it, one matrix per randomisation."""
        side = self.side_information
        hat = alpha * averages.second_moment
        return hat if side == 0 else hat + side / (1 - side) * np.eye(self.channel.indices)

    def trace(self, alpha: float, iterations: int, damping: float = 1.0, start: np.ndarray | None = None) -> np.ndarray:
        """Overlaps (iterations + 1, P, P): the start (that of the side information), then one per iteration.

        The damping is that of message passing: both the estimate and its variance move by this share of a step.
        """
        P = self.channel.indices
        Q = self.side_information * np.eye(P) if start is None else np.asarray(start, float)
        Q = np.diag(Q) if Q.ndim == 1 else Q
        averages, rows = self.at(2**12 // self.channel.cost, 2), [Q]
        space = Coordinates.of_rows(np.ones(P, bool), self.channel.diagonal)
        for _ in range(iterations):
            step = self.after(averages, alpha, space, np.eye(P) - Q)
            Q = (1 - damping) * Q + damping * space.overlap(step)[0]
            rows.append(Q)
        return np.array(rows)

    # -- fixed points ------------------------------------------------------------------------------------------

    def uninformed(self, alpha: float, *, tolerance: float, hint: State | None = None) -> State:
        """Fixed point reached from a vanishing, isotropic overlap.

        As the start tends to zero directions are learned one after the other: the most unstable one grows and
        settles while the others are still negligible, then the most unstable of the rest, and so on. ``hint`` is
        the end point of a smaller alpha: a start, or the answer where recovery was exact there.
        """
        if hint is not None and hint.exact and "marginal" not in hint.status:
            return self._recovered(self._contraction(alpha))  # more data cannot undo it
        space, x = self.nothing()
        if self.side_information > 0:
            start = self.side_information * np.eye(self.channel.indices)
            return self._settle(alpha, *self.coordinates(start, np.eye(len(start)) - start), tolerance)
        if hint is not None and not hint.exact:
            space, x = self.coordinates(hint.Q, hint.V)
        state, follower = None, self
        for _ in range(self.channel.indices + 1):
            state = self._ended(alpha, *follower.grown(alpha, space, x), tolerance)
            if state.averages is None or not state.converged:
                return state
            space, x = self.coordinates(state.Q, state.V)
            found = self.outside(state, space, x)
            excess, doubt = alpha * found.rate - 1, 2 * alpha * found.error
            if not found.starts_by_itself and excess < -doubt:
                return state
            if not found.starts_by_itself and excess <= doubt:
                break
            follower = self._follower_on_more_nodes
        assert state is not None
        return replace(state, status=state.status + "; alpha is within errors of the threshold of another index")

    def grown(self, alpha: float, space: Coordinates, x: np.ndarray) -> tuple[Coordinates, np.ndarray, str, bool]:
        """Where the dynamics ends on few nodes once all that grows has entered, the most unstable direction first."""
        status, done, settled = "converged: nothing is learned", True, space.learned == 0
        for _ in range(2 * self.channel.indices + 1):
            found = self.instability(space, x)
            learned, grows = space.learned, found.starts_by_itself or alpha * found.rate > 1
            if grows:
                space, x = self.entered(space, x, found, alpha)
            elif settled:
                break
            space, x, status, done = self.coarse_point(alpha, space, x)
            settled = True
            if status.startswith("exact") or not done or (grows and space.learned <= learned):
                break
        return space, x, status, done

    def informed(self, alpha: float, *, tolerance: float) -> State:
        """Fixed point reached from almost full overlap."""
        inside, v = self.visible @ self.visible.T, NEARLY_EXACT / 2
        start = (1 - v) * inside
        return self._settle(alpha, *self.coordinates(start, np.eye(len(start)) - inside + v * inside), tolerance)

    def from_overlap(self, alpha: float, q: np.ndarray, *, tolerance: float) -> State:
        """Fixed point reached from given overlaps, a vector or a matrix; what is at exactly zero stays there.

        Except where E[g g^T] does not vanish at zero overlap, which then cannot stay.
        """
        Q = np.asarray(q, float)
        Q = np.diag(Q) if Q.ndim == 1 else Q
        return self._settle(alpha, *self.coordinates(Q, np.eye(len(Q)) - Q), tolerance)

    def instability(self, space: Coordinates, x: np.ndarray) -> Instability:
        """What grows outside the learned subspace on the branch that the coordinates describe."""
        P = self.channel.indices
        if self.channel.diagonal:
            unlearned = np.asarray(space.complement.any(1))
            if unlearned.all():
                return diagonal_instability(curvature_at_zero(self.channel).value[None], unlearned)
            if not unlearned.any():
                return diagonal_instability(np.zeros((1, P)), unlearned)
            return diagonal_instability(self.block(0)(space.overlap(x)[1]).curvature, unlearned)
        if space.learned == 0:
            return self._instability_at_zero
        return instability([self.nodes(0)], space.overlap(x)[1], self.unlearned_frame(space), _MISALIGNED)

    @cached_property
    def _instability_at_zero(self) -> Instability:
        return sampled_instability_at_zero(self.channel, self.nodes, tolerance=1.0)

    @property
    def has_careful_nodes(self) -> bool:
        """Whether posteriors come from so many draws that those of which few count can be had better."""
        return self.channel.stochastic and self.channel.draws >= 4 * MANY_EFFECTIVE_SAMPLES

    def nodes(self, number: int) -> QuasiRandomAverager:
        """As :meth:`block`, for a channel without deterministic averages."""
        average = self.block(number)
        assert isinstance(average, QuasiRandomAverager)
        return average

    def entered(
        self, space: Coordinates, x: np.ndarray, found: Instability, alpha: float
    ) -> tuple[Coordinates, np.ndarray]:
        """The branch with what is unstable there taken in: at its own first step, or with a small overlap."""
        if found.starts_by_itself:
            return space.enlarged(x, alpha * found.moment)
        seed = np.exp(to_logit(SEED_OVERLAP)) / np.linalg.norm(found.direction, 2)
        return space.enlarged(x, seed * found.direction)

    def unlearned_frame(self, space: Coordinates) -> np.ndarray:
        """What is not learned and can be."""
        outside = space.complement
        values, vectors = np.linalg.eigh(outside.T @ self.visible @ self.visible.T @ outside)
        return outside if self.visible.shape[1] == len(outside) else outside @ vectors[:, values > 0.5]

    def nothing(self) -> tuple[Coordinates, np.ndarray]:
        """Coordinates of zero overlap: there are none."""
        return Coordinates.of_rows(np.zeros(self.channel.indices, bool), self.channel.diagonal), np.zeros(0)

    def coordinates(self, Q: np.ndarray, V: np.ndarray) -> tuple[Coordinates, np.ndarray]:
        """The learned subspace of an overlap and its coordinates there."""
        return Coordinates.of_overlap(Q, V, self.channel.diagonal)

    def _coarse_tolerance(self, alpha: float) -> float:
        """Deterministic averages are solved to the end; noisy ones as far as they carry information.

        Above p/r a slow drift towards full overlap, by log(alpha r/p) a step, must not pass for a fixed point.
        """
        if self.deterministic:
            return 1e-9
        noise = 1e-2 if self.channel.stochastic else 2e-3
        drift = float(np.log(alpha / self.exact_recovery_bound)) if np.isfinite(self.exact_recovery_bound) else 0.0
        return min(noise, max(0.2 * drift, 2e-4)) if drift > 0 else noise

    def _recovered(self, status: str) -> State:
        P = self.channel.indices
        inside = self.visible @ self.visible.T
        return State(inside, np.eye(P) - inside, np.zeros((P, P)), None, status, True, True)

    def _trivial(self) -> State:
        P = self.channel.indices
        averages = self.block(0)(np.eye(P))
        return State(np.zeros((P, P)), np.eye(P), np.zeros((P, P)), averages, "converged: nothing is learned")

    def outside(self, end: State, space: Coordinates, x: np.ndarray) -> Instability:
        """What grows outside the learned subspace at an end point, from its own averages where they tell."""
        if self.channel.diagonal and space.learned > 0 and end.averages is not None:
            return diagonal_instability(end.averages.curvature, np.asarray(space.complement.any(1)))
        return self.instability(space, x)

    def _settle(self, alpha: float, space: Coordinates, x: np.ndarray, tolerance: float) -> State:
        """Follow the dynamics on few nodes, then refine on as many as the tolerance asks for."""
        return self._ended(alpha, *self.coarse_point(alpha, space, x), tolerance)

    def _ended(
        self, alpha: float, space: Coordinates, x: np.ndarray, status: str, done: bool, tolerance: float
    ) -> State:
        """The end on few nodes, refined."""
        if status.startswith("exact"):
            return self._recovered(status)
        if space.learned == 0:
            return self._trivial()
        if not done:
            Q, V = space.overlap(x)
            return State(Q, V, np.full(Q.shape, np.nan), self.coarse(V), status, False)
        return refined(self, alpha, space, x, tolerance)

    def coarse_point(
        self, alpha: float, space: Coordinates, x: np.ndarray
    ) -> tuple[Coordinates, np.ndarray, str, bool]:
        """Iterate with few nodes; directions that die out are left out, and the subspace is turned where it must."""
        status, done = "converged: nothing is learned", True
        for turn in range(_TURNS + 1):
            space, x, status, done = self._coarse_run(alpha, space, x)
            if self.channel.diagonal or self.channel.stochastic or not done:
                break
            turned = self._aligned(alpha, space, x, enlarge=turn >= _TURNS - 1)
            if turned is None:
                break
            space, x = turned
        return space, x, status, done

    def _aligned(
        self, alpha: float, space: Coordinates, x: np.ndarray, enlarge: bool
    ) -> tuple[Coordinates, np.ndarray] | None:
        """The subspace in which g_out lives at the end point, where it is not the one iterated in.

        Found with few nodes its directions are a little off; one step of the full matrix corrects that to second
        order. What it does not correct is learned itself.
        """
        outside = self.unlearned_frame(space)
        if outside.shape[1] == 0:
            return None
        moment = alpha * self.coarse(space.overlap(x)[1]).second_moment.mean(0)
        values, vectors = np.linalg.eigh(outside.T @ moment @ outside)
        if values[-1] < _MISALIGNED:
            return None
        if enlarge or space.rank == 0:
            new = values > _MISALIGNED
            axes = outside @ vectors[:, new]
            return space.enlarged(x, (axes * values[new]) @ axes.T)
        rest = np.eye(len(moment)) - space.certain @ space.certain.T
        return space.turned(x, np.linalg.eigh(rest @ moment @ rest)[1][:, -space.rank :])

    def _coarse_run(
        self, alpha: float, space: Coordinates, x: np.ndarray
    ) -> tuple[Coordinates, np.ndarray, str, bool]:
        dying = float(to_logit(NO_OVERLAP))

        def step(point: np.ndarray) -> np.ndarray:
            return self.after(self.coarse, alpha, space, space.overlap(point)[1])

        def stop(point: np.ndarray, residual: float) -> str | None:
            return self._early_end(alpha, space, point)

        for _ in range(space.rank + 1):
            if space.rank == 0:
                break
            found = fixed_point(
                step, x, tolerance=self._coarse_tolerance(alpha), max_steps=150 if self.channel.stochastic else 400,
                anderson=2, max_move=1.0, stride=8.0, stop=stop,
            )  # fmt: skip
            x, status = found.x, found.status
            if status.startswith("lost"):
                space, x = space.without(x, dying)
                continue
            if status.startswith("known"):
                space, x = space.pinned(x)
                continue
            return space, x, status, found.converged
        return space, x, "converged: nothing else is learned", True

    def _early_end(self, alpha: float, space: Coordinates, x: np.ndarray) -> str | None:
        logits = space.logits(x)
        if self.side_information == 0 and logits[0] < to_logit(NO_OVERLAP):
            return "lost an index"
        contraction = self.exact_recovery_bound / alpha
        everything = space.learned == self.visible.shape[1]
        if everything and np.isfinite(contraction) and from_logit(logits)[1].max() <= NEARLY_EXACT:
            if abs(contraction - 1) < MARGINAL:
                bound = self.exact_recovery_bound
                return f"exact recovery is marginal at alpha = {bound:g}: 1-q falls algebraically only"
            if contraction < 1:
                return self._contraction(alpha)
        return "known" if logits[-1] >= np.log(PRECISIONS[1]) else None

    def _contraction(self, alpha: float) -> str:
        return f"exact recovery: 1-q contracts by {self.exact_recovery_bound / alpha:.3g} per iteration"

    def after(self, averages: Averager, alpha: float, space: Coordinates, V: np.ndarray) -> np.ndarray:
        """Coordinates after one iteration from variance V, averaged over the randomisations."""
        return self.update(averages(V), alpha, space).mean(0)

    def update(self, averages: Averages, alpha: float, space: Coordinates) -> np.ndarray:
        """Coordinates after one iteration, one row per randomisation."""
        return space.of_precision(self.precision(averages, alpha))
