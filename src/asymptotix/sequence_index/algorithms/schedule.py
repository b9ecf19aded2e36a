"""The plan of a message-passing run, from state evolution: which directions enter when, and all variances.

With variances measured on the data (Algorithm 1 as printed) and a small start, the state leaves the Nishimori line
V = I - Q while an index is not learned, and this deviation grows faster than the overlap of the index. The plan avoids
this in two ways. First, directions of the index space enter one after the other, in the order in which they become
unstable in state evolution; each starts from a spectral estimate conditional on the directions learned before. Second,
the variances are prescribed by state evolution: in the limit of large D they are a deterministic sequence.

State evolution is eq. (14) of Troiani et al., arXiv:2502.00901, with side information eq. (18). The successive
instabilities are in Theorem 2.3 there ("grand staircase"). Learning in stages is not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...core.progress import Say, quietly
from .. import streams
from ..channels.protocol import Averager, Channel
from ..evolution.averages import QuasiRandomAverager
from ..evolution.dynamics import NO_OVERLAP
from ..evolution.fixed_points import StateEvolution
from ..evolution.instability import NO_MOMENT, Instability, diagonal_instability, instability
from ..evolution.overlap_map import MISALIGNED
from ..evolution.zero_overlap import curvature_at_zero, least_moment
from .spectral_start import same_part
from .spectral_theory import SpectralTheory, spectral_theory, uninformative

#: Smallest variance; below it single precision has no digits left to gain.
SMALLEST_VARIANCE = 1e-6
#: Variance below which a direction counts as known: a stage does not wait until its variance is steady.
_KNOWN = 1e-4
#: Overlap ascribed to a direction that cannot be learned by state evolution, and number of iterations in which changes
#: of smaller overlaps still count. Later they do not: averages over nodes keep scattering by up to this overlap.
_HOPELESS, _TRIED = 1e-3, 6
#: Number of nodes of spectral starts; channels with slow posteriors use fewer.
_SPECTRAL_NODES = 2**12
#: All stages but the last end when no logit of an overlap moves by more than _STEADY per iteration, or after
#: _INTERMEDIATE iterations.
_STEADY = 0.02
_INTERMEDIATE = 40


@dataclass(frozen=True)
class Stage:
    """Part of a run of T iterations during which the subspace of iterated index directions does not change.

    Attributes
    ----------
    frame : array (P, k)
        Orthonormal columns: the directions that enter by a spectral start. There are none if all directions start from
        side information or at random, or if the entering directions start by themselves.
    active : array (P, P)
        Projector on all directions that are iterated.
    start : SpectralTheory
        Theory of the spectral start.
    growth : float
        alpha lambda of the entering directions; they can be learned if it exceeds one.
    V : array (T+1, P, P)
        Posterior variance before every iteration and after the last.
    precision : array (T, P, P)
        Prescribed A = Qhat = alpha E[g g^T] for every iteration.
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
        """Mask (P,) of the rows with a component in the directions that enter by a spectral start."""
        return abs(self.frame).max(1, initial=0.0) > 1e-6

    @classmethod
    def unplanned(cls, indices: int, iterations: int) -> Stage:
        """Return a stage of all indices at once, with nan for V and ``precision``, which then come from the data."""
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
        quick = channel.quick_posterior != channel.posterior
        spectral = _SPECTRAL_NODES if quick else evolution.nodes.affordable(_SPECTRAL_NODES)
        self.spectral = SpectralNodes(channel, spectral)
        self.averages = evolution.nodes.for_plan(count)

    def growth(self, V: np.ndarray, rest: np.ndarray) -> Instability:
        """Return the instability of the directions ``rest`` (orthonormal columns (P, d)) at covariance V (P, P)."""
        evolution, nothing = self.evolution, rest.shape[1] == len(V)
        if evolution.channel.diagonal:
            curvature = curvature_at_zero(evolution.channel).value[None] if nothing else self.averages(V).curvature
            return diagonal_instability(curvature, np.asarray(rest.any(1)))
        first = rest.shape[1] == evolution.visible.shape[1]  # no direction has entered; V = I alone does not show this
        if evolution.nodes.posteriors:
            return instability([self.averages], V, rest, least_moment(evolution.channel) if first else NO_MOMENT)
        if first:
            return evolution.growth(evolution.nothing(0.0))
        return instability([evolution.nodes.block(0)], V, rest, MISALIGNED)


def joint_stage(
    evolution: StateEvolution,
    averages: Averager,
    alpha: float,
    *,
    iterations: int,
    damping: float,
    say: Say = quietly,
) -> Stage:
    """Return a stage in which all indices are iterated at once, from the overlap of the side information.

    ``say`` receives progress messages.
    """
    P = evolution.channel.indices
    V = (1 - evolution.side_information) * np.eye(P)
    trajectory = _trajectory(evolution, averages, alpha, V, np.eye(P), iterations, damping, 0.0, say)
    return Stage(np.zeros((P, 0)), np.eye(P), uninformative(0.0, 0), np.nan, *trajectory)


class SpectralNodes:
    """Nodes for the theory of spectral starts; posteriors at zero overlap are computed once and serve every alpha."""

    def __init__(self, channel: Channel, count: int) -> None:
        self.channel = channel
        self._nodes = QuasiRandomAverager(channel, count, 1, seed=streams.SPECTRAL_NODES, fields=1)

    @cached_property
    def _at_nothing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._at(np.eye(self.channel.indices))

    def _at(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        Z, weights, _, posterior = self._nodes.samples(V, self.channel.quick_posterior)
        return Z, weights, posterior.covariance

    def theory(self, V: np.ndarray, frame: np.ndarray, alpha: float) -> SpectralTheory:
        """Return the theory of a start of the directions ``frame`` (orthonormal columns (P, k)) at covariance V."""
        Z, weights, covariance = self._at_nothing if np.array_equal(V, np.eye(len(V))) else self._at(V)
        inside = np.einsum("pi,npmqk,qj->nimjk", frame, covariance, frame, optimize=True)
        mask = same_part(frame, self.channel.groups)
        found = spectral_theory(alpha, inside, np.einsum("pi,npm->nim", frame, Z), weights, mask)
        return found if found.overlap.any() else uninformative(_HOPELESS, frame.shape[1])


def learning_stages(
    nodes: PlanNodes, alpha: float, *, iterations: int, damping: float, say: Say = quietly
) -> list[Stage]:
    """Return one stage per set of directions that enter together, the most unstable set first.

    A stage has at most ``iterations`` iterations, and all but the last at most 40. ``say`` receives progress messages.
    """
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
    """Directions (P, k) that enter next, their growth alpha lambda, and whether they need no spectral start."""

    frame: np.ndarray
    growth: float
    by_itself: bool


def _not_active(evolution: StateEvolution, active: np.ndarray) -> np.ndarray:
    """Return orthonormal columns (P, d): directions on which outputs depend, outside the range of ``active`` (P, P)."""
    if evolution.channel.diagonal:
        return np.eye(len(active))[:, np.diag(active) < 0.5]
    return _range(evolution.visible @ evolution.visible.T - active, evolution.channel, 0.5)


def _range(matrix: np.ndarray, channel: Channel, least: float) -> np.ndarray:
    """Return the eigenvectors (P, k) of a positive matrix (P, P) with eigenvalues above ``least``, as columns.

    Each eigenvector has entries only for rows that act on the same block of the data.
    """
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
    """Return the most unstable of the directions ``rest`` (P, d) at covariance V (P, P); all if none is unstable."""
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
    """Return V before every iteration and after the last, (T+1, P, P), and precisions A (T, P, P), from a start V.

    ``active`` (P, P) projects on the directions that are iterated. The sequence ends after ``iterations`` steps, or
    when no logit of an overlap moves by ``steady`` or more (0: never).
    """
    Vs, precisions = [V], []
    prior, moments = np.eye(len(V)) / (1 - evolution.side_information), averages.along_a_path(np.diag(active) > 0.5)
    for number in range(iterations):
        say(f"iteration {number + 1}")
        # With two lists of draws, E[g g^T] of unlearned directions scatters around zero and may be negative.
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


def _at_least(matrix: np.ndarray, least: float) -> np.ndarray:
    """Return the symmetric part of a matrix with all eigenvalues raised to at least ``least``."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * values.clip(least)) @ vectors.T


def _moved(V: np.ndarray, new: np.ndarray, least: float) -> float:
    """Return the largest change of log(v/q), v the eigenvalues of V (P, P) or ``new`` (P, P) and q = 1 - v.

    Only eigenvalues with q above ``least`` and v above _KNOWN count.
    """
    old, v = np.linalg.eigvalsh(V), np.linalg.eigvalsh(new)
    alive = (1 - v > least) & (v > _KNOWN)
    change = abs(np.log(v / old) - np.log((1 - v).clip(1e-12) / (1 - old).clip(1e-12)))
    return float(change[alive].max(initial=0.0))
