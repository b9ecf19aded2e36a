"""A threshold with its numerical error, and one step of a staircase of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.status import Status

#: Smallest growth factor; it replaces zero in logarithms.
NO_GROWTH = 1e-12
#: Share of a correction for the bias of few effective draws that counts as the error of the correction.
UNCORRECTED_SHARE = 0.5
#: Largest scatter as a share of the tolerance. It is below one, as eight randomisations give the scatter to a quarter.
SCATTER_SHARE = 0.8
#: Smallest diagonal element of a direction (norm one) at which its index counts as learned with this direction.
PART = 1e-3


class Threshold(NamedTuple):
    """An alpha with its numerical error, the status of its search (``how``) and the status text (``words``)."""

    alpha: float
    error: float
    how: Status = Status.CONVERGED
    words: str = ""
    #: Largest alpha of a search that found no threshold; infinite otherwise.
    searched: float = np.inf

    def per(self, copies: int) -> Threshold:
        """Return the threshold of a model each of whose samples is ``copies`` samples of this one."""
        if copies == 1:
            return self
        if self.how is Status.AT_BOUND and np.isfinite(self.searched):
            return not_below(self.searched / copies)
        # nan stays the same object, because thresholds are compared as tuples.
        error = self.error if np.isnan(self.error) else self.error / copies
        return self._replace(alpha=self.alpha / copies, error=error)

    def checked(self, tolerance: float) -> Threshold:
        """Return the threshold, INACCURATE if its relative error exceeds ``tolerance``, NOT_CONVERGED if not finite."""
        if self.how is not Status.CONVERGED or self.error <= tolerance * self.alpha:
            return self
        if not np.isfinite(self.alpha + self.error):
            return self._replace(how=Status.NOT_CONVERGED, words="the search did not settle")
        words = f"the relative error {self.error / self.alpha:.1e} exceeds the tolerance {tolerance:.1e}"
        return self._replace(how=Status.INACCURATE, words=words)

    def unless(self, unsettled: str) -> Threshold:
        """Return the threshold, NOT_CONVERGED if ``unsettled``, the text for what did not converge, is not empty."""
        return self._replace(how=Status.NOT_CONVERGED, words=unsettled) if unsettled else self


def scatter_of_blocks(rows: np.ndarray, means: np.ndarray | None = None) -> float:
    """Return the standard error of the mean of ``rows`` (blocks, randomisations); zero for one randomisation.

    ``means`` (randomisations,) are the results of all blocks together, by default the means over blocks.

    The scatter of the means counts, as errors of successive blocks of one randomisation compensate each other. It may
    be small by chance: the scatter of one block, divided by the number of blocks, is a lower limit.
    """
    blocks, count = rows.shape
    if count == 1:
        return 0.0
    of_means = (rows.mean(0) if means is None else means).std(ddof=1)
    of_one = np.sqrt(rows.var(1, ddof=1).mean())
    return float(max(of_means, of_one / blocks) / np.sqrt(count))


def fill_a_net(blocks: int) -> bool:
    """Return whether the number of blocks is a power of two; other numbers of Sobol points give a worse mean."""
    return blocks & (blocks - 1) == 0


#: The threshold of indices that are never learned: the output does not depend on them, or never determines them.
NEVER = Threshold(np.inf, 0.0)


def not_below(alpha: float) -> Threshold:
    """Return the threshold that stands for a search up to ``alpha`` without result: infinite, error nan, AT_BOUND."""
    return Threshold(np.inf, np.nan, Status.AT_BOUND, f"not below {alpha:.4g}", alpha)


class StaircaseStep(NamedTuple):
    """One step of the staircase: at ``threshold`` an overlap along ``direction`` (PSD, Frobenius norm 1) appears."""

    threshold: Threshold
    direction: np.ndarray

    def involves(self, index: int) -> bool:
        """Whether the index with number ``index`` is learned in this step."""
        return bool(self.direction[index, index] > PART)


def along(threshold: Threshold, index: int, indices: int) -> StaircaseStep:
    """Return the step at ``threshold`` in which the index number ``index`` of ``indices`` is learned."""
    return StaircaseStep(threshold, np.diag(np.eye(indices)[index]))
