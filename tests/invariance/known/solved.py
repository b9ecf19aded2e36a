"""Overlaps of a noiseless link, and whether they are those that are known."""

from __future__ import annotations

import numpy as np

import asymptotix as asx


def solved(link, alpha, indices=1, tokens=1):
    problem = asx.BayesOptimal(asx.SequenceIndex(link, indices, tokens))
    found = asx.solve(problem, alpha=alpha, tolerance=2e-3, progress=False)
    assert set(found.status_code.values) <= {"converged", "exact_recovery"}
    return found


def within(found, overlap, slack=1e-9) -> None:
    """The reported error is the tolerance; ``slack`` is that of what it is compared with."""
    assert (abs(found.overlap.values.reshape(np.shape(overlap)) - overlap) <= 3 * found.overlap_err.values.reshape(
        np.shape(overlap)) + slack).all()  # fmt: skip
