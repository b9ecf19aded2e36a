"""From a fixed point on few nodes to one on as many as a tolerance asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .averages import Averages
from .overlap_coordinates import Coordinates

if TYPE_CHECKING:
    from .state_evolution import StateEvolution

#: Numbers of blocks at which the error is looked at.
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_STEPS = 8
#: Least distance from one of an eigenvalue of a Jacobian from draws, in a quasi-Newton step.
_LEAST_GAP = 0.12
#: Length of a first step on noisy nodes from which the change of the residual is measured, and the least such change.
_PROBE, _STEADY = 0.15, 0.01


@dataclass(frozen=True)
class State:
    """Where state evolution ended at one alpha.

    Attributes
    ----------
    Q, V : arrays (P, P)
        Overlap and posterior variance I - Q.
    Q_error : array (P, P)
        Numerical standard error of Q.
    averages : Averages or None
        Averages at the end point, on the finest nodes used. None where recovery is exact.
    status : str
    converged, exact : bool
    """

    Q: np.ndarray
    V: np.ndarray
    Q_error: np.ndarray
    averages: Averages | None
    status: str = "converged"
    converged: bool = True
    exact: bool = False

    @property
    def q(self) -> np.ndarray:
        """Overlap of every index with itself (P,)."""
        return np.diag(self.Q)

    @property
    def v(self) -> np.ndarray:
        """Posterior variance of every index (P,)."""
        return np.diag(self.V)

    @property
    def error(self) -> np.ndarray:
        """Numerical standard error of ``q`` (P,)."""
        return np.diag(self.Q_error)


def refined(
    evolution: StateEvolution, alpha: float, space: Coordinates, x: np.ndarray, tolerance: float
) -> State:
    """Quasi-Newton steps with the coarse Jacobian, on more and more nodes, until the error is small enough.

    From wherever it is evaluated, every block of nodes predicts the fixed point, one prediction per randomisation.
    Those made from nearby are averaged: a quasi-Newton step leaves at most a tenth of itself to go. Steps on the way
    are bounded, predictions are not: their scatter is the error, large close to a threshold.
    """
    inverse = _newton(_jacobian(evolution, alpha, space, x), evolution.channel.stochastic)
    x, ends, seen = x.copy(), [], []
    far, near, steps, before = np.inf, 0.0, 0, None
    stochastic = evolution.channel.stochastic
    most = BLOCKS[3] if stochastic else BLOCKS[-1]
    while True:
        averages = evolution.block(len(ends))(space.overlap(x)[1])
        residuals = evolution.update(averages, alpha, space) - x
        if before is not None and not ends:
            inverse = _corrected(inverse, x - before[0], before[1] - residuals.mean(0))
        moves = residuals @ inverse.T
        tangent, steps = space.tangent(x), steps + 1
        if not ends:  # on the way there; later blocks only scatter around the end
            near = max(4 * tolerance, 2 * float(_standard_error(moves, tangent).max()))
            far = float(abs(np.tensordot(moves.mean(0), tangent, 1)).max())
            if (far > near or (stochastic and steps == 1)) and steps < _STEPS:
                before = (x, residuals.mean(0))
                x = x + (_probe(inverse, moves.mean(0)) if stochastic and steps == 1 else _bounded(moves.mean(0)))
                continue
        ends.append(x + moves)
        seen.append(averages)
        together = np.mean(ends, axis=0)
        x = x + _bounded(together.mean(0) - x)
        errors = _standard_error(together, tangent)
        error = float(errors.max())
        if (error <= tolerance and len(ends) in BLOCKS) or len(ends) == most or far > near:
            break
    Q, V = space.overlap(x)
    status = "converged" if far <= near else f"not converged: still moving by {far:.1e}"
    if far <= near and error > 2 * tolerance:
        status = f"converged; the error {error:.1e} exceeds the tolerance {tolerance:.1e}"
    known = space.certain.shape[1]
    if known:
        status += f"; exact recovery of {known} of {evolution.visible.shape[1]} directions"
    return State(Q, V, _standard_error(together, space.tangent(x)), _pooled(seen), status, far <= near)


def _bounded(move: np.ndarray) -> np.ndarray:
    """A step of at most one in every coordinate."""
    return move.clip(-1.0, 1.0)


def _probe(inverse: np.ndarray, move: np.ndarray) -> np.ndarray:
    """A step along the slow direction, the way the move has it, long enough to measure how slow it is."""
    values, vectors = np.linalg.eig(inverse)
    slow = np.real(vectors[:, np.real(values).argmax()])
    slow = slow / abs(slow).max()
    return slow * np.copysign(np.clip(abs(slow @ move) / (slow @ slow), _PROBE, 1.0), slow @ move)


def _corrected(inverse: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """(I - J)^{-1} that maps the change of the residual along a step, on the same nodes, to that step (Broyden).

    Where the slow direction of the coarse Jacobian is uncertain, this measures how slow it is. A step along which the
    residual hardly falls, or grows, tells nothing.
    """
    if step @ change < _STEADY * (step @ step):
        return inverse
    return inverse + np.outer(step - inverse @ change, step @ inverse) / (step @ inverse @ change)


def _newton(jacobian: np.ndarray, stochastic: bool) -> np.ndarray:
    """(I - J)^{-1}, the step from a residual to the fixed point.

    Near a threshold a Jacobian from few nodes and draws may have an eigenvalue at or above one, though the fixed
    point is stable: the step would lead away from it. It is then kept in its direction and bounded.
    """
    gap = np.eye(len(jacobian)) - jacobian
    if not stochastic:
        return np.linalg.inv(gap)
    values, vectors = np.linalg.eig(gap)
    values = np.maximum(np.real(values), _LEAST_GAP) + 1j * np.imag(values)
    return np.real(vectors / values @ np.linalg.inv(vectors))


def _jacobian(evolution: StateEvolution, alpha: float, space: Coordinates, x: np.ndarray) -> np.ndarray:
    if len(x) == 0:
        return np.zeros((0, 0))
    base = evolution.after(evolution.coarse, alpha, space, space.overlap(x)[1])
    # Which samples have enough draws changes with the overlap: a longer step feels less of that.
    step = 0.3 if evolution.channel.stochastic else 0.05
    columns = []
    for i in range(len(x)):
        moved = x.copy()
        moved[i] += step
        columns.append((evolution.after(evolution.coarse, alpha, space, space.overlap(moved)[1]) - base) / step)
    return np.array(columns).T


def _standard_error(rows: np.ndarray, tangent: np.ndarray) -> np.ndarray:
    """Of the overlap (P, P), from independent rows of coordinates (R, m) and dQ/dx (m, P, P).

    A deterministic average has one row and only rounding.
    """
    if len(rows) == 1:
        return 1e-9 * abs(tangent).sum(0)
    spread = np.tensordot(rows - rows.mean(0), tangent, 1)
    return np.sqrt((spread**2).sum(0) / (len(rows) - 1) / len(rows))


def _pooled(averages: list[Averages]) -> Averages:
    return Averages(*(np.mean(parts, axis=0) for parts in zip(*averages, strict=True)))
