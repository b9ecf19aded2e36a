"""A threshold with its numerical error, and one step of a staircase of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Stands for zero where a logarithm of a growth is taken.
NO_GROWTH = 1e-12
#: Blocks of nodes at most for one number on posteriors that come from draws.
MOST_BLOCKS_DRAWN = 4
#: Share of a correction for the bias of few effective draws that counts as its error.
UNCORRECTED_SHARE = 0.5


class Threshold(NamedTuple):
    """An alpha and its numerical error."""

    alpha: float
    error: float


NEVER = Threshold(np.inf, 0.0)


class StaircaseStep(NamedTuple):
    """One step of the staircase: at ``threshold`` an overlap along ``direction`` (PSD, Frobenius norm 1) appears."""

    threshold: Threshold
    direction: np.ndarray


def along(threshold: Threshold, index: int, indices: int) -> StaircaseStep:
    """The step of one index of a diagonal overlap."""
    return StaircaseStep(threshold, np.diag(np.eye(indices)[index]))
