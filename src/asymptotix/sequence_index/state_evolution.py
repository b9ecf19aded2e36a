"""State evolution: the overlap that Bayes-optimal learning reaches at a given alpha.

    Qhat = alpha E[g_out g_out^T],       V' = (I/(1-l) + Qhat)^{-1},       Q' = I - V',

l the overlap of the side information (0: none). It is iterated as dynamics from a stated start, never solved as a
root: unstable fixed points are real and are not what an algorithm reaches. Rows of rank-one attention keep a diagonal
overlap (each may change its sign), so the state is the vector x = log(q/v) of their logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..core.iterate import fixed_point
from ..core.linalg import from_logit, to_logit
from .averages import Averager, Averages, SignAverager, averager
from .channel import Channel
from .unlearned import curvature_at_zero

#: Overlap at which an unstable index enters the iteration. Below it the growth is linear, by alpha f_l a step.
SEED_OVERLAP = 0.02
#: Below this overlap an index counts as not learned.
NO_OVERLAP = 1e-5
#: Exact recovery is declared when every 1-q is below this and falls, at an alpha at which Q = I is stable.
NEARLY_EXACT = 2e-3
#: Relative distance from that alpha within which the fate of an overlap near one hangs on the quadrature.
MARGINAL = 1e-3
_COARSE = 2**11
#: Nodes are added in blocks, each with this many nodes in every randomisation, until the error is small enough.
_BLOCK = 2**11
#: Numbers of blocks at which the error is looked at.
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_STEPS = 8
#: Fewer would make the error, which decides when to stop, itself uncertain: by 40 % with four.
_RANDOMISATIONS = 8


@dataclass(frozen=True)
class State:
    """Where state evolution ended at one alpha.

    Attributes
    ----------
    q, v : arrays (P,)
        Overlap of every index and its complement.
    error : array (P,)
        Numerical standard error of q.
    averages : Averages or None
        Averages at the end point, on the finest nodes used. None where recovery is exact.
    status : str
    converged, exact : bool
    """

    q: np.ndarray
    v: np.ndarray
    error: np.ndarray
    averages: Averages | None
    status: str = "converged"
    converged: bool = True
    exact: bool = False

    @property
    def V(self) -> np.ndarray:
        """Posterior variance I - Q as a matrix."""
        return np.diag(self.v)


class StateEvolution:
    """State evolution of one channel; keeps its quadrature nodes between calls.

    Parameters
    ----------
    channel : Channel
    side_information : float
        l in [0, 1): overlap of the teacher with the side information S = sqrt(l) W + sqrt(1-l) noise.
    """

    def __init__(self, channel: Channel, side_information: float = 0.0, seed: int = 0) -> None:
        self.channel = channel
        self.side_information = side_information
        self._seed = seed
        self.at = lru_cache(maxsize=None)(self._averager)

    def _averager(self, count: int, randomisations: int, block: int = 0) -> Averager:
        return averager(self.channel, count, randomisations, self._seed + (randomisations == 1), block)

    def block(self, number: int) -> Averager:
        """Averages over one block of nodes; those of several blocks are independent enough to be averaged."""
        return self.at(_BLOCK, _RANDOMISATIONS, number)

    @property
    def coarse(self) -> Averager:
        """Few nodes: enough to follow the dynamics, not to report a number."""
        return self.at(_COARSE, 1)

    @property
    def exact_recovery_bound(self) -> float:
        """P/r: Q = I is stable above this alpha and unstable below."""
        return self.channel.indices / self.channel.outputs

    def update(self, averages: Averages, alpha: float) -> np.ndarray:
        """Logits of the next overlap, one row per randomisation."""
        hat = alpha * np.einsum("rpp->rp", averages.second_moment).clip(1e-300)
        return self.logit_of_precision(hat)

    def logit_of_precision(self, hat: np.ndarray) -> np.ndarray:
        """log(q/v) of the posterior with precision Qhat from the data, side information included."""
        side = self.side_information
        return np.log(hat) if side == 0 else np.log(hat + side / (1 - side))

    def trace(self, alpha: float, iterations: int, damping: float = 1.0, start: np.ndarray | None = None) -> np.ndarray:
        """Overlaps (iterations + 1, P): the start (that of the side information), then one row per iteration.

        The damping is that of message passing: both the estimate and its variance move by this share of a step.
        """
        q = np.full(self.channel.indices, self.side_information) if start is None else np.asarray(start, float)
        averages, rows = self.at(2**12, 2), [q]
        for _ in range(iterations):
            step = self.update(averages(np.diag(1 - q)), alpha).mean(0)
            q = (1 - damping) * q + damping * from_logit(step)[0]
            rows.append(q)
        return np.array(rows)

    # -- fixed points ------------------------------------------------------------------------------------------

    def uninformed(self, alpha: float, *, tolerance: float, hint: State | None = None) -> State:
        """Fixed point reached from a vanishing overlap.

        As the start tends to zero the indices are learned one after the other: the most unstable one grows and
        settles while the others are still negligible, then the most unstable of the rest, and so on. ``hint`` is
        the end point of a smaller alpha: a start, or the answer where recovery was exact there.
        """
        if hint is not None and hint.exact and "marginal" not in hint.status:
            return self._recovered(self._contraction(alpha))  # more data cannot undo it
        if self.side_information > 0:
            return self._settle(alpha, np.full(self.channel.indices, self._side_logit), tolerance)
        x = np.full(self.channel.indices, -np.inf)
        if hint is not None and not hint.exact:
            x = np.where(hint.q > 0, to_logit(np.maximum(hint.q, 1e-12), hint.v), -np.inf)
        for _ in range(2 * self.channel.indices):
            unlearned = ~np.isfinite(x)
            growth = alpha * self._curvature(x)
            candidate = int(np.where(unlearned, growth, -np.inf).argmax()) if unlearned.any() else -1
            if np.isfinite(x).any() and not (candidate >= 0 and growth[candidate] > 1):
                state = self._settle(alpha, x, tolerance)
                x = to_logit(state.q, state.v)
                if state.exact or not self._unstable(state, alpha):
                    return state
                continue
            if not growth[candidate] > 1:
                break
            x[candidate] = to_logit(SEED_OVERLAP)
            x = self._coarse_point(alpha, x)[0]
        return self._trivial()

    def informed(self, alpha: float, *, tolerance: float) -> State:
        """Fixed point reached from almost full overlap."""
        return self._settle(alpha, np.full(self.channel.indices, -to_logit(NEARLY_EXACT / 2)), tolerance)

    def from_overlap(self, alpha: float, q: np.ndarray, *, tolerance: float) -> State:
        """Fixed point reached from a given overlap of every index; an index at exactly zero stays there."""
        q = np.asarray(q, float)
        with np.errstate(divide="ignore"):
            return self._settle(alpha, to_logit(q, 1 - q), tolerance)

    @property
    def _side_logit(self) -> float:
        return float(to_logit(self.side_information))

    @property
    def _coarse_tolerance(self) -> float:
        """Deterministic averages are solved to the end; noisy ones as far as they carry information."""
        return 1e-9 if isinstance(self.coarse, SignAverager) else 2e-3

    def _recovered(self, status: str) -> State:
        P = self.channel.indices
        return State(np.ones(P), np.zeros(P), np.zeros(P), None, status, True, True)

    def _trivial(self) -> State:
        P = self.channel.indices
        averages = self.block(0)(np.eye(P))
        return State(np.zeros(P), np.ones(P), np.zeros(P), averages, "converged: nothing is learned")

    def _curvature(self, x: np.ndarray) -> np.ndarray:
        if not np.isfinite(x).any():
            return curvature_at_zero(self.channel).value
        averages = self.block(0)(np.diag(from_logit(x)[1]))
        return averages.curvature.mean(0)

    def _unstable(self, state: State, alpha: float) -> bool:
        """Whether an index that is not learned at the end point would grow there, beyond doubt."""
        if state.averages is None or (state.q > 0).all():
            return False
        curvature = state.averages.curvature
        bound = curvature.mean(0) - 2 * curvature.std(0, ddof=1) / np.sqrt(len(curvature))
        return bool((alpha * bound[state.q == 0] > 1).any())

    def _settle(self, alpha: float, x: np.ndarray, tolerance: float) -> State:
        """Follow the dynamics on few nodes, then refine on as many as the tolerance asks for."""
        x, status, done = self._coarse_point(alpha, x)
        if status.startswith("exact"):
            return self._recovered(status)
        active = np.isfinite(x)
        if not active.any():
            return self._trivial()
        if not done:
            q, v = from_logit(x)
            return State(q, v, np.full(len(q), np.nan), self.coarse(np.diag(v)), status, False)
        return self._refine(alpha, x, active, tolerance)

    def _coarse_point(self, alpha: float, x: np.ndarray) -> tuple[np.ndarray, str, bool]:
        """Iterate the active (finite) logits with few nodes. Logits of indices that die out become -inf."""
        x = x.copy()
        active = np.isfinite(x)
        dying = to_logit(NO_OVERLAP)

        def step(batch: np.ndarray, lanes: np.ndarray) -> np.ndarray:
            return np.array([self._next(self.coarse, alpha, row, active)[active] for row in batch])

        def stop(batch: np.ndarray, residual: np.ndarray, lanes: np.ndarray) -> list[str | None]:
            return [self._early_end(alpha, row, active) for row in batch]

        for _ in range(int(active.sum()) + 1):
            if not active.any():
                return x, "converged: nothing is learned", True
            found = fixed_point(
                step, x[active], tolerance=self._coarse_tolerance, max_steps=400, anderson=2, max_move=1.0, stride=8.0,
                stop=stop, keep_trace=False,
            )  # fmt: skip
            x[active] = np.atleast_2d(found.x)[0]
            status = str(np.atleast_1d(found.status)[0])
            if status.startswith("lost"):
                x[x < dying] = -np.inf
                active = np.isfinite(x)
                continue
            return x, status, bool(np.atleast_1d(found.converged)[0])
        return x, "converged: nothing is learned", True

    def _early_end(self, alpha: float, x_active: np.ndarray, active: np.ndarray) -> str | None:
        if self.side_information == 0 and (x_active < to_logit(NO_OVERLAP)).any():
            return "lost an index"
        contraction = self.exact_recovery_bound / alpha
        if not active.all() or from_logit(x_active)[1].max() > NEARLY_EXACT:
            return None
        if abs(contraction - 1) < MARGINAL:
            return f"exact recovery is marginal at alpha = {self.exact_recovery_bound:g}: 1-q falls algebraically only"
        return self._contraction(alpha) if contraction < 1 else None

    def _contraction(self, alpha: float) -> str:
        return f"exact recovery: 1-q contracts by {self.exact_recovery_bound / alpha:.3g} per iteration"

    def _next(self, averages: Averager, alpha: float, x_active: np.ndarray, active: np.ndarray) -> np.ndarray:
        x = np.full(len(active), -np.inf)
        x[active] = x_active
        return self.update(averages(np.diag(from_logit(x)[1])), alpha).mean(0)

    def _refine(self, alpha: float, x: np.ndarray, active: np.ndarray, tolerance: float) -> State:
        """Quasi-Newton steps with the coarse Jacobian, on more and more nodes, until the error is small enough.

        From wherever it is evaluated, every block of nodes predicts the fixed point, one prediction per randomisation.
        Those made from nearby are averaged: a quasi-Newton step leaves at most a tenth of itself to go.
        """
        inverse = np.linalg.inv(np.eye(active.sum()) - self._jacobian(alpha, x, active))
        x, ends, seen = x.copy(), [], []
        far, near, steps = np.inf, 0.0, 0
        while True:
            q, v = from_logit(x)
            averages = self.block(len(ends))(np.diag(v))
            moves = ((self.update(averages, alpha)[:, active] - x[active]) @ inverse.T).clip(-1.0, 1.0)
            scale, steps = (q * v)[active], steps + 1
            if not ends:  # on the way there; later blocks only scatter around the end
                near = max(4 * tolerance, 2 * float((scale * _standard_error(moves)).max()))
                far = float((scale * abs(moves.mean(0))).max())
                if far > near and steps < _STEPS:
                    x[active] += moves.mean(0)
                    continue
            ends.append(x[active] + moves)
            seen.append(averages)
            together = np.mean(ends, axis=0)
            x[active] = together.mean(0)
            spread = _standard_error(together)
            error = float((scale * spread).max())
            if (error <= tolerance and len(ends) in BLOCKS) or len(ends) == BLOCKS[-1] or far > near:
                break
        q, v = from_logit(x)
        errors = np.zeros(len(x))
        errors[active] = (q * v)[active] * spread
        status = "converged" if far <= near else f"not converged: still moving by {far:.1e}"
        if far <= near and error > 2 * tolerance:
            status = f"converged; the error {error:.1e} exceeds the tolerance {tolerance:.1e}"
        return State(q, v, errors, _pooled(seen), status, far <= near)

    def _jacobian(self, alpha: float, x: np.ndarray, active: np.ndarray) -> np.ndarray:
        base = self._next(self.coarse, alpha, x[active], active)[active]
        columns = []
        for i in range(int(active.sum())):
            moved = x[active].copy()
            moved[i] += 0.05
            columns.append((self._next(self.coarse, alpha, moved, active)[active] - base) / 0.05)
        return np.array(columns).T


def _standard_error(rows: np.ndarray) -> np.ndarray:
    """Of the mean of independent rows; a deterministic average has one row and only rounding."""
    return rows.std(0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.full(rows.shape[1:], 1e-9)


def _pooled(averages: list[Averages]) -> Averages:
    return Averages(*(np.mean(parts, axis=0) for parts in zip(*averages, strict=True)))
