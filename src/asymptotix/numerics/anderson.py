"""Safeguarded Anderson acceleration of many independent fixed-point iterations (lanes) at once."""

import numpy as np
from numpy.typing import NDArray

GROWTH = 2.0
"""An extrapolation after which the residual exceeds this multiple of the best one is undone."""

RANK_TOLERANCE = 1e-8
"""Relative singular value below which directions of the (column-normalised) history are ignored."""

EXPANSION_TOLERANCE = 1e-8
"""How far above one the real part of a Ritz value must be to count as an expanding direction."""


class Anderson:
    """Type-II Anderson mixing of given depth, one history per lane; depth 0 is the plain damped iteration.

    With f(x) = F(x) - x, differences dX, dF of the last points and gamma = argmin |f - dF gamma|, the next
    point is x + damping f - (dX + damping dF) gamma (Walker and Ni, SIAM J. Numer. Anal. 49, 1715 (2011)).

    Unaided, this is a secant method and would converge to unstable fixed points too. Three safeguards keep it
    on the track of the dynamics; when one strikes, the lane takes the plain damped step and its history
    starts afresh:

    * the history shows an expanding direction: a Ritz value of the Jacobian of F with real part above one;
    * the proposed step is non-finite or longer than `max_move` in some coordinate;
    * the residual at the current point exceeds `GROWTH` times the best since the history began. If that point
      came from an extrapolation it is undone: the plain step is taken from the point before it.

    Where the fallback is taken twice in a row (a long drift, such as an overlap that creeps towards one), the second
    plain step may be `stride` times as long, up to `max_move`.

    They see only the directions the history has explored, so the end point is still worth a look with
    `asymptotix.numerics.polish.spectral_radius`.
    """

    def __init__(
        self, lanes: int, size: int, depth: int, damping: float, max_move: float | None, stride: float = 1.0
    ) -> None:
        self.depth = depth
        self.damping = damping
        self.stride = stride
        self.max_move = np.inf if max_move is None else max_move
        self._point = np.zeros((lanes, size))
        self._residual = np.zeros((lanes, size))
        self._dx = np.zeros((lanes, size, depth))
        self._df = np.zeros((lanes, size, depth))
        self._pairs = np.zeros(lanes, dtype=np.int64)
        self._started = np.zeros(lanes, dtype=bool)
        self._best = np.full(lanes, np.inf)
        self._extrapolated = np.zeros(lanes, dtype=bool)
        self._drifting = np.zeros(lanes, dtype=bool)

    def accepts(self, lanes: NDArray[np.int64], residual: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the points just evaluated stand, given F(x) - x (lanes, n). A plain step always does."""
        # A comparison with NaN is False, so a non-finite residual is never fine.
        fine = _size(residual) <= GROWTH * self._best[lanes]
        return fine | ~self._extrapolated[lanes]

    def retreat(self, lanes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Undo the last extrapolation of these lanes: the plain step from the point before it."""
        self._restart(lanes)
        return self._point[lanes] + self.damping * self._residual[lanes]

    def advance(
        self, lanes: NDArray[np.int64], point: NDArray[np.float64], residual: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Next points (lanes, n) after accepted points with their residual vectors F(x) - x."""
        plain = point + self.damping * residual
        if self.depth == 0:
            return plain
        grew = _size(residual) > GROWTH * self._best[lanes]
        self._remember(lanes, point, residual)
        proposal = plain - self._correction(lanes, residual)
        short = _size(proposal - point) <= self.max_move
        trusted = (self._pairs[lanes] > 0) & ~grew & short & np.isfinite(proposal).all(axis=1)
        trusted &= ~self._expanding(lanes)
        self._restart(lanes[~trusted])
        self._extrapolated[lanes] = trusted
        # Along an expanding or drifting direction the dynamics goes on by itself: follow it in longer strides.
        drift = (self.stride * self.damping * residual).clip(-self.max_move, self.max_move)
        fallback = np.where(self._drifting[lanes][:, None], point + drift, plain)
        self._drifting[lanes] = ~trusted & ~grew
        return np.where(trusted[:, None], proposal, fallback)

    def _remember(
        self, lanes: NDArray[np.int64], point: NDArray[np.float64], residual: NDArray[np.float64]
    ) -> None:
        paired = self._started[lanes]
        known = lanes[paired]
        slot = self._pairs[known] % self.depth
        self._dx[known, :, slot] = point[paired] - self._point[known]
        self._df[known, :, slot] = residual[paired] - self._residual[known]
        self._pairs[known] += 1
        self._started[lanes] = True
        self._point[lanes] = point
        self._residual[lanes] = residual
        self._best[lanes] = np.minimum(self._best[lanes], _size(residual))

    def _restart(self, lanes: NDArray[np.int64]) -> None:
        """Forget the differences but not the last accepted point, from which the next difference is taken."""
        self._dx[lanes] = 0.0
        self._df[lanes] = 0.0
        self._pairs[lanes] = 0
        self._best[lanes] = _size(self._residual[lanes])
        self._extrapolated[lanes] = False

    def _correction(self, lanes: NDArray[np.int64], residual: NDArray[np.float64]) -> NDArray[np.float64]:
        dx, df = self._dx[lanes], self._df[lanes]
        scale = _column_norms(df)
        gamma = np.linalg.pinv(df / scale, rcond=RANK_TOLERANCE) @ residual[:, :, None]
        return (((dx + self.damping * df) / scale) @ gamma)[:, :, 0]

    def _expanding(self, lanes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether J - I, seen through df = (J - I) dx, has an eigenvalue of positive real part."""
        dx, df = self._dx[lanes], self._df[lanes]
        scale = _column_norms(dx)
        projected = np.linalg.pinv(dx / scale, rcond=RANK_TOLERANCE) @ (df / scale)
        return np.linalg.eigvals(projected).real.max(axis=1) > EXPANSION_TOLERANCE


def _size(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.abs(vectors).max(axis=1, initial=0.0)


def _column_norms(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.sqrt((matrices**2).sum(axis=1, keepdims=True))
    return np.where(norms > 0, norms, 1.0)
