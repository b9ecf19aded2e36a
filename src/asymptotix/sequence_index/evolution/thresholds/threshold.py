"""A threshold with its numerical error, and one step of a staircase of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....core.status import Status

#: Stands for zero where a logarithm of a growth is taken.
NO_GROWTH = 1e-12
#: Share of a correction for the bias of few effective draws that counts as its error.
UNCORRECTED_SHARE = 0.5
#: Share of the tolerance that the scatter may take: from eight randomisations it is known to a quarter.
SCATTER_SHARE = 0.8
#: Share of a direction along an index from which on the index counts as learned with it.
PART = 1e-3


class Threshold(NamedTuple):
    """An alpha and its numerical error; how the search for it ended, and what is to be said of that."""

    alpha: float
    error: float
    how: Status = Status.CONVERGED
    words: str = ""
    #: Largest alpha of a search that found no threshold.
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
        """The same, INACCURATE where it is found and its relative error exceeds the tolerance."""
        if self.how is not Status.CONVERGED or self.error <= tolerance * self.alpha:
            return self
        if not np.isfinite(self.alpha + self.error):
            return self._replace(how=Status.NOT_CONVERGED, words="the search did not settle")
        words = f"the relative error {self.error / self.alpha:.1e} exceeds the tolerance {tolerance:.1e}"
        return self._replace(how=Status.INACCURATE, words=words)

    def unless(self, unsettled: str) -> Threshold:
        """The same, NOT_CONVERGED where it rests on something that is not, in words."""
        return self._replace(how=Status.NOT_CONVERGED, words=unsettled) if unsettled else self


def scatter_of_blocks(rows: np.ndarray, means: np.ndarray | None = None) -> float:
    """Standard error of the mean of rows (blocks, randomisations); zero where a deterministic average has one of them.

    What all blocks together say for each randomisation, where it is not their mean, is in ``means``.

    Successive blocks of one randomisation make up for each other: it is the scatter of their means. From few of those
    it may be small by chance, the more so if one stops where it is. It is not taken for less than that of one block,
    known as often as there are blocks, over their number.
    """
    blocks, count = rows.shape
    if count == 1:
        return 0.0
    of_means = (rows.mean(0) if means is None else means).std(ddof=1)
    of_one = np.sqrt(rows.var(1, ddof=1).mean())
    return float(max(of_means, of_one / blocks) / np.sqrt(count))


def fill_a_net(blocks: int) -> bool:
    """Whether so many blocks are a power of two: with a few more points the mean is worse, not better."""
    return blocks & (blocks - 1) == 0


#: What the theory says is never learned: the output does not depend on it, or never fixes it.
NEVER = Threshold(np.inf, 0.0)


def not_below(alpha: float) -> Threshold:
    """A threshold that was looked for up to an alpha, in vain: nothing is known of its value but that."""
    return Threshold(np.inf, np.nan, Status.AT_BOUND, f"not below {alpha:.4g}", alpha)


class StaircaseStep(NamedTuple):
    """One step of the staircase: at ``threshold`` an overlap along ``direction`` (PSD, Frobenius norm 1) appears."""

    threshold: Threshold
    direction: np.ndarray

    def involves(self, index: int) -> bool:
        """Whether an index is learned with it."""
        return bool(self.direction[index, index] > PART)


def along(threshold: Threshold, index: int, indices: int) -> StaircaseStep:
    """The step of one index of a diagonal overlap."""
    return StaircaseStep(threshold, np.diag(np.eye(indices)[index]))
