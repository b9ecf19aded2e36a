"""Newton steps towards a fixed point that is close, with a derivative that is learned on the way."""

import numpy as np
from numpy.typing import NDArray

LONGEST = 1.0
"""Longest step in a coordinate."""

BELIEVED = 0.5
"""Share of a step by which the derivative may be wrong along it and still be corrected: more is no smooth map."""


class QuasiNewton:
    """Steps x + B (G(x) - x) towards the fixed point of G, with B that comes close to (1 - G')^{-1}.

    After every step B is corrected by what it showed (Broyden, Math. Comp. 19, 577 (1965), his first method). What is
    learned of one map serves for others that differ little.

    Parameters
    ----------
    inverse : array (n, n)
        B to begin with.
    """

    def __init__(self, inverse: NDArray[np.float64]) -> None:
        self.inverse = inverse
        self._last: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def begin(self) -> None:
        """Go on with another map: the next point is not compared with the last one."""
        self._last = None

    def step(self, x: NDArray[np.float64], image: NDArray[np.float64]) -> NDArray[np.float64]:
        """Next point after x, where G(x) = image."""
        residual = image - x
        if self._last is not None:
            self._learn(x - self._last[0], self._last[1] - residual)
        self._last = x, residual
        return x + (self.inverse @ residual).clip(-LONGEST, LONGEST)

    def _learn(self, move: NDArray[np.float64], fall: NDArray[np.float64]) -> None:
        """Make B map the fall of the residual to the move that brought it."""
        expected = self.inverse @ fall
        missing = move - expected
        if np.linalg.norm(missing) < BELIEVED * np.linalg.norm(move):
            self.inverse = self.inverse + np.outer(missing, move @ self.inverse) / (move @ expected)
