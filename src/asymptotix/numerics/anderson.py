"""Safeguarded Anderson acceleration of a fixed-point iteration."""

import numpy as np
from numpy.typing import NDArray

GROWTH = 2.0
"""An extrapolation after which the residual exceeds this multiple of the best one is undone."""

RANK_TOLERANCE = 1e-8
"""Relative singular value below which directions of the (column-normalised) history are ignored."""

EXPANSION_TOLERANCE = 1e-8
"""How far above one the real part of a Ritz value must be to count as an expanding direction."""


class Anderson:
    """Type-II Anderson mixing; depth 0 is the plain iteration.

    The iterated map is F. With f(x) = F(x) - x, differences dX of the last points, dF of their f, and
    gamma = argmin |f - dF gamma|, the next point is x + f - (dX + dF) gamma (Walker and Ni, SIAM J. Numer. Anal. 49,
    1715 (2011)).

    Without safeguards this is a secant method, which also converges to unstable fixed points. Three safeguards make it
    follow the dynamics. When one of them acts, the plain step is taken and the history starts afresh:

    * the history shows an expanding direction: a Ritz value of the Jacobian of F with real part above one;
    * the proposed step is non-finite or longer than `max_move` in some coordinate;
    * the residual at the current point exceeds `GROWTH` times the best since the history began. If that point
      came from an extrapolation it is undone: the plain step is taken from the point before it.

    If the plain step is taken twice in a row although the residual did not grow (a long drift, such as an overlap that
    slowly approaches one), the second one may be `stride` times as long, up to `max_move`. The safeguards know only the
    directions that the history has explored.

    Parameters
    ----------
    size : int
        Number n of coordinates of x.
    depth : int
        Number of past steps that are combined.
    max_move : float, optional
        Longest extrapolated move of a coordinate; None sets no limit.
    stride : float
        Factor of the second plain step in a drift, at least 1; see above.
    """

    def __init__(self, size: int, depth: int, max_move: float | None, stride: float = 1.0) -> None:
        self.depth = depth
        self.stride = stride
        self.max_move = np.inf if max_move is None else max_move
        self._point = np.zeros(size)
        self._residual = np.zeros(size)
        self._dx = np.zeros((size, depth))
        self._df = np.zeros((size, depth))
        self._pairs = 0
        self._started = False
        self._best = np.inf
        self._extrapolated = False
        self._drifting = False

    def accepts(self, residual: NDArray[np.float64]) -> bool:
        """Return whether the last evaluated point x is kept, given ``residual`` F(x) - x; always after a plain step."""
        # A comparison with NaN is False, so a residual of NaN is never small enough.
        return bool(_size(residual) <= GROWTH * self._best) or not self._extrapolated

    def retreat(self) -> NDArray[np.float64]:
        """Undo the last extrapolation, and return the end (n,) of the plain step from the point before it."""
        self._restart()
        return self._point + self._residual

    def advance(self, point: NDArray[np.float64], residual: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the next point (n,) after the accepted ``point`` x (n,), given its ``residual`` F(x) - x (n,)."""
        plain = point + residual
        if self.depth == 0:
            return plain
        grew = bool(_size(residual) > GROWTH * self._best)
        self._remember(point, residual)
        proposal = plain - self._correction(residual)
        trusted = (
            self._pairs > 0
            and not grew
            and bool(_size(proposal - point) <= self.max_move)
            and bool(np.isfinite(proposal).all())
            and not self._expanding()
        )
        # Along an expanding or drifting direction the dynamics moves on by itself; longer strides follow it faster.
        drift = (self.stride * residual).clip(-self.max_move, self.max_move)
        fallback = point + drift if self._drifting else plain
        self._drifting = not trusted and not grew
        if not trusted:
            self._restart()
            return fallback
        self._extrapolated = True
        return proposal

    def _remember(self, point: NDArray[np.float64], residual: NDArray[np.float64]) -> None:
        if self._started:
            slot = self._pairs % self.depth
            self._dx[:, slot] = point - self._point
            self._df[:, slot] = residual - self._residual
            self._pairs += 1
        self._started = True
        self._point = point.copy()
        self._residual = residual.copy()
        self._best = float(np.minimum(self._best, _size(residual)))

    def _restart(self) -> None:
        """Forget the differences, but keep the last accepted point, from which the next difference is taken."""
        self._dx[:] = 0.0
        self._df[:] = 0.0
        self._pairs = 0
        self._best = _size(self._residual)
        self._extrapolated = False

    def _correction(self, residual: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = _column_norms(self._df)
        gamma = np.linalg.pinv(self._df / scale, rcond=RANK_TOLERANCE) @ residual[:, None]
        return (((self._dx + self._df) / scale) @ gamma)[:, 0]

    def _expanding(self) -> bool:
        """Return whether the Jacobian J of F, estimated from df = (J - I) dx, has an eigenvalue with real part > 1."""
        scale = _column_norms(self._dx)
        projected = np.linalg.pinv(self._dx / scale, rcond=RANK_TOLERANCE) @ (self._df / scale)
        return bool(np.linalg.eigvals(projected).real.max() > EXPANSION_TOLERANCE)


def _size(vector: NDArray[np.float64]) -> float:
    return float(np.abs(vector).max(initial=0.0))


def _column_norms(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.sqrt((matrix**2).sum(axis=0, keepdims=True))
    return np.where(norms > 0, norms, 1.0)
