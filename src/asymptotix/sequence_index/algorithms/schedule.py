"""The plan of a message-passing run, from state evolution: what enters when, and with what variances.

With variances measured on the data (Algorithm 1 as printed) and a small start, the state leaves the Nishimori line
V = I - Q while an index is not learned, and that mode outruns the growth of its overlap. The cure has two halves.
Directions of the index space enter one after the other, as state evolution says that they become unstable: each from a
spectral start that is conditional on what is learned already. And the variances, a deterministic sequence in the limit
of large D, are prescribed by state evolution.

State evolution is that of Troiani et al., arXiv:2502.00901, eq. (14), with side information eq. (18); the successive
instabilities are those of Theorem 2.3 there ("grand staircase"). Learning in stages is not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...core.progress import Say, quietly
from .. import streams
from ..channels.links.level_sets.quick import quick_posterior
from ..channels.protocol import Averager, Channel, OperatorAverager
from ..evolution.averages import QuasiRandomAverager, averager
from ..evolution.dynamics import NO_OVERLAP
from ..evolution.fixed_points import StateEvolution
from ..evolution.followed_moments import FollowedMoments
from ..evolution.instability import NO_MOMENT, Instability, diagonal_instability, instability
from ..evolution.overlap_map import MISALIGNED
from ..evolution.sorting.sorted_fields import SortedNodes
from ..evolution.zero_overlap import curvature_at_zero, least_moment
from .spectral_start import same_part
from .spectral_theory import SpectralTheory, spectral_theory, uninformative

#: Least variance; below it single precision has no digits left to gain.
SMALLEST_VARIANCE = 1e-6
#: Variance at which a direction counts as known: a plan does not wait for what it could still gain.
_KNOWN = 1e-4
#: Overlap given to a direction that state evolution says cannot be learned, and iterations for which it is tried all
#: the same. After them no plan waits for a smaller overlap: nodes scatter by up to as much, and go on to do so.
_HOPELESS, _TRIED = 1e-3, 6
#: Number of nodes of spectral starts; channels with slow posteriors take fewer.
_SPECTRAL_NODES = 2**12
_STEADY = 0.02
_INTERMEDIATE = 40


@dataclass(frozen=True)
class Stage:
    """Part of a run during which the subspace of iterated indices does not change.

    Attributes
    ----------
    frame : array (P, k)
        Orthonormal columns: the directions that enter by a spectral start. There are none where all start from side
        information or at random, or where those that enter start by themselves.
    active : array (P, P)
        Projector on all directions that are iterated.
    start : SpectralTheory
        What theory says of the spectral start.
    growth : float
        alpha lambda of the entering directions; they can be learned where this exceeds one.
    V : array (T+1, P, P)
        Posterior variance before every iteration and after the last.
    precision : array (T, P, P)
        Prescribed A = Qhat = alpha E[g g^T] of every iteration.
    """

    frame: np.ndarray
    active: np.ndarray
    start: SpectralTheory
    growth: float
    V: np.ndarray
    precision: np.ndarray

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.precision)

    @property
    def entering(self) -> np.ndarray:
        """Rows that have a part in what enters by a spectral start, a mask (P,)."""
        return abs(self.frame).max(1, initial=0.0) > 1e-6

    @classmethod
    def unplanned(cls, indices: int, iterations: int) -> Stage:
        """All indices at once, with variances from the data."""
        none = np.full((iterations + 1, indices, indices), np.nan)
        return cls(np.zeros((indices, 0)), np.eye(indices), uninformative(0.0, 0), np.nan, none, none[1:])


class PlanNodes:
    """Nodes for the plans of a problem, the same for every alpha.

    Where :func:`asymptotix.solve` uses nodes without posteriors, the plans use these nodes and the averages kept on
    them. Otherwise the plans have their own nodes, fewer than :func:`asymptotix.solve` uses.

    Parameters
    ----------
    evolution : StateEvolution
    count : int
        Number of nodes of averages that need posteriors.
    """

    def __init__(self, evolution: StateEvolution, count: int) -> None:
        self.evolution = evolution
        channel = evolution.channel.in_single_precision()
        quick = quick_posterior(channel) != channel.posterior
        spectral = _SPECTRAL_NODES if quick else evolution.nodes.affordable(_SPECTRAL_NODES)
        self.spectral = SpectralNodes(channel, spectral)
        if isinstance(evolution.nodes, SortedNodes):
            self.averages: Averager = evolution.nodes.few
            return
        # Equivalent directions are recognised by the scatter between randomisations, so there must be several.
        split = 1 if channel.diagonal else 8
        self.averages = averager(channel, max(count // split, 64), split, seed=streams.PLAN_NODES)

    def growth(self, V: np.ndarray, rest: np.ndarray) -> Instability:
        """Return the instability of the directions ``rest`` (P, d), where the other directions have variances V."""
        evolution, nothing = self.evolution, rest.shape[1] == len(V)
        if evolution.channel.diagonal:
            curvature = curvature_at_zero(evolution.channel).value[None] if nothing else self.averages(V).curvature
            return diagonal_instability(curvature, np.asarray(rest.any(1)))
        first = rest.shape[1] == evolution.visible.shape[1]  # no direction has entered; V = I alone does not show this
        if not isinstance(evolution.nodes, SortedNodes):
            assert isinstance(self.averages, OperatorAverager)
            return instability([self.averages], V, rest, least_moment(evolution.channel) if first else NO_MOMENT)
        if first:
            return evolution.growth(evolution.nothing(0.0))
        return instability([evolution.nodes.operator_block(0)], V, rest, MISALIGNED)


def joint_stage(
    evolution: StateEvolution,
    averages: Averager,
    alpha: float,
    *,
    iterations: int,
    damping: float,
    say: Say = quietly,
) -> Stage:
    """All indices at once from the overlap of the side information."""
    P = evolution.channel.indices
    V = (1 - evolution.side_information) * np.eye(P)
    trajectory = _trajectory(evolution, averages, alpha, V, np.eye(P), iterations, damping, 0.0, say)
    return Stage(np.zeros((P, 0)), np.eye(P), uninformative(0.0, 0), np.nan, *trajectory)


class SpectralNodes:
    """The nodes of spectral starts; what they say where nothing is learned yet serves every alpha."""

    def __init__(self, channel: Channel, count: int) -> None:
        self.channel = channel
        self._nodes = QuasiRandomAverager(channel, count, 1, seed=streams.SPECTRAL_NODES, fields=1)

    @cached_property
    def _at_nothing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._at(np.eye(self.channel.indices))

    def _at(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        Z, weights, _, posterior = self._nodes.samples(V, quick_posterior(self.channel))
        return Z, weights, posterior.covariance

    def theory(self, V: np.ndarray, frame: np.ndarray, alpha: float) -> SpectralTheory:
        """Of the start of some directions, the columns of ``frame`` (P, k), where the others have variances V."""
        Z, weights, covariance = self._at_nothing if np.array_equal(V, np.eye(len(V))) else self._at(V)
        inside = np.einsum("pi,npmqk,qj->nimjk", frame, covariance, frame, optimize=True)
        mask = same_part(frame, self.channel.groups)
        found = spectral_theory(alpha, inside, np.einsum("pi,npm->nim", frame, Z), weights, mask)
        return found if found.overlap.any() else uninformative(_HOPELESS, frame.shape[1])


def learning_stages(
    nodes: PlanNodes, alpha: float, *, iterations: int, damping: float, say: Say = quietly
) -> list[Stage]:
    """Return one stage per set of directions, the most unstable first; ``iterations`` bounds the last, joint stage."""
    evolution = nodes.evolution
    P = evolution.channel.indices
    V, active, stages = np.eye(P), np.zeros((P, P)), []
    rest = _not_active(evolution, active)
    while rest.shape[1] > 0:
        entering = _next(nodes, V, rest, alpha)
        frame, start = entering.frame, uninformative(0.0, entering.frame.shape[1])
        active = active + frame @ frame.T
        if not entering.by_itself:
            start = nodes.spectral.theory(V, frame, alpha)
        V = V - frame @ start.overlap @ frame.T
        rest = _not_active(evolution, active)
        last = rest.shape[1] == 0
        length, steady = (iterations, 1e-3) if last else (min(iterations, _INTERMEDIATE), _STEADY)
        trajectory = _trajectory(evolution, nodes.averages, alpha, V, active, length, damping, steady, say)
        spectral = frame if not entering.by_itself else frame[:, :0]
        stages.append(Stage(spectral, active, start, entering.growth, *trajectory))
        V = trajectory[0][-1]
    return stages


class _Entering(NamedTuple):
    """Directions (P, k) that enter next, their growth alpha lambda, and whether they start by themselves."""

    frame: np.ndarray
    growth: float
    by_itself: bool


def _not_active(evolution: StateEvolution, active: np.ndarray) -> np.ndarray:
    """Orthonormal columns (P, d): what the output depends on and is not iterated yet."""
    if evolution.channel.diagonal:
        return np.eye(len(active))[:, np.diag(active) < 0.5]
    return _range(evolution.visible @ evolution.visible.T - active, evolution.channel, 0.5)


def _range(matrix: np.ndarray, channel: Channel, least: float) -> np.ndarray:
    """Orthonormal eigenvectors of eigenvalue above ``least`` of a positive matrix, each within one part of the data."""
    if channel.diagonal or channel.groups is None:
        blocks = [np.arange(len(matrix))]
    else:
        blocks = [np.flatnonzero(channel.groups == group) for group in np.unique(channel.groups)]
    columns = []
    for block in blocks:
        values, vectors = np.linalg.eigh(matrix[np.ix_(block, block)])
        for value, vector in zip(values, vectors.T, strict=True):
            if value > least:
                columns.append(np.zeros(len(matrix)))
                columns[-1][block] = vector
    return np.array(columns).reshape(-1, len(matrix)).T


def _next(nodes: PlanNodes, V: np.ndarray, rest: np.ndarray, alpha: float) -> _Entering:
    """The most unstable of the directions ``rest``; all of them where none is unstable."""
    channel, found = nodes.evolution.channel, nodes.growth(V, rest)
    if found.starts_by_itself:
        return _Entering(_range(found.moment, channel, NO_MOMENT), np.inf, True)
    frame = _range(found.direction, channel, 1e-6) if found.direction.any() else rest
    return _Entering(frame, alpha * found.rate, False)


def _trajectory(
    evolution: StateEvolution,
    averages: Averager,
    alpha: float,
    V: np.ndarray,
    active: np.ndarray,
    iterations: int,
    damping: float,
    steady: float,
    say: Say = quietly,
) -> tuple[np.ndarray, np.ndarray]:
    """Variances and precisions of at most ``iterations`` steps; ends when the logits move by less than ``steady``."""
    Vs, precisions = [V], []
    prior, moments = np.eye(len(V)) / (1 - evolution.side_information), _moments(averages, active)
    for number in range(iterations):
        say(f"iteration {number + 1}")
        # From two lists of draws E[g g^T] of what is not learned scatters around zero, to both sides.
        hat = active @ (alpha * moments(V)) @ active
        if not np.isfinite(hat).all():
            raise FloatingPointError(f"state evolution has no finite precision at V={V.tolist()}")
        hat = _at_least(hat, 0.0)
        precisions.append(hat)
        target = np.linalg.inv(prior + hat)
        new = _at_least((1 - damping) * V + damping * target, SMALLEST_VARIANCE)
        change = _moved(V, new, NO_OVERLAP if number < _TRIED else _HOPELESS)
        V = new
        Vs.append(V)
        if steady > 0 and change < steady:
            break
    return np.array(Vs), np.array(precisions)


def _moments(averages: Averager, active: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """V -> E[g g^T] on a path along which the active directions move."""
    if isinstance(averages, QuasiRandomAverager) and averages.channel.diagonal:
        return FollowedMoments(averages, np.diag(active) > 0.5)
    return lambda V: averages(V).second_moment.mean(0)


def _at_least(matrix: np.ndarray, least: float) -> np.ndarray:
    """The symmetric matrix with its eigenvalues raised to ``least``."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * values.clip(least)) @ vectors.T


def _moved(V: np.ndarray, new: np.ndarray, least: float) -> float:
    """Largest change of a principal logit log(v/q) that is neither below the ``least`` overlap nor known."""
    old, v = np.linalg.eigvalsh(V), np.linalg.eigvalsh(new)
    alive = (1 - v > least) & (v > _KNOWN)
    change = abs(np.log(v / old) - np.log((1 - v).clip(1e-12) / (1 - old).clip(1e-12)))
    return float(change[alive].max(initial=0.0))
