"""Batches of samples of two layers through the adaptive cubature, on all cores: posteriors, or what averages need."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ....numerics.threads import available_cores, each_in_parallel
from ..protocol import DEFAULT_ACCURACY, Accuracy
from . import quadtree
from .activation_kinds import SOFTMAX

_WORTH_A_THREAD = 256  # samples: of fewer, more than two threads take longer
# Of skip strength and of the variances of an index: below it is computed in double precision.
_LEAST_SKIP, _LEAST_VARIANCE = 0.03, 1e-5


def posterior_moments(
    kind: int,
    c: float,
    u: np.ndarray,
    omega: np.ndarray,
    V: np.ndarray,
    accuracy: Accuracy = DEFAULT_ACCURACY,
    *,
    single: bool | None = None,
    threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log Z_out (n,), E[Z|y] - omega (n, 4) and Cov[Z|y] (n, 4, 4) for a batch of samples.

    Parameters
    ----------
    kind : int
        ``SOFTMAX`` or ``LINEAR``.
    c : float
        Skip strength.
    u : array (n, 2)
        Last pre-activation (minus, plus), up to a common sign.
    omega : array (n, 4)
        Mean of Z in the order z1-, z1+, z2-, z2+.
    V : array (2, 2) or (n, 2, 2)
        Covariance of (z1, z2) per token.
    accuracy : Accuracy
        Of nodes and cells.
    single : bool, optional
        In single precision; by default where that adds nothing to the errors.
    threads : int, optional
        By default as many as there are cores.
    """
    n = len(u)
    found = np.empty(n), np.empty((n, 4)), np.empty((n, 4, 4))
    fields = omega, omega, np.array([1.0, 1.0, 0.0, 0.0])
    _compute(kind, c, u, fields, V, np.zeros(2), accuracy, (*found, np.empty((4, 0))), single, threads)
    return found


def score_squares(
    kind: int,
    c: float,
    u: np.ndarray,
    fields: tuple[np.ndarray, np.ndarray, np.ndarray],
    V: np.ndarray,
    shares: np.ndarray,
    accuracy: Accuracy,
) -> tuple[np.ndarray, np.ndarray]:
    """Log Z_out (n,) and, for both indices, what estimates E|g_l|^2, then |G_ll|_F^2 (4, n), at diagonal V (2, 2).

    The posteriors in between are never stored: to write them and to make scores of them would take a fifth of the time
    of the cubature on two cores, and six tenths of it on sixteen.

    Parameters
    ----------
    fields : arrays (n, 4), (n, 4), (4,)
        True indices Z and noise, and by how much: omega_l is the first number of l times Z_l and the other times its
        noise.
    shares : array (2,)
        Of the estimator -tr G_ll of E|g_l|^2, beside |g_l|^2.
    """
    n = len(u)
    log_evidence, squares = np.empty(n), np.empty((4, n))
    no_posteriors = np.empty((0, 4)), np.empty((0, 4, 4))
    _compute(kind, c, u, fields, V, shares, accuracy, (log_evidence, *no_posteriors, squares))
    return log_evidence, squares


def _compute(
    kind: int,
    c: float,
    u: np.ndarray,
    fields: tuple[np.ndarray, np.ndarray, np.ndarray],
    V: np.ndarray,
    shares: np.ndarray,
    accuracy: Accuracy,
    results: tuple[np.ndarray, ...],
    single: bool | None = None,
    threads: int | None = None,
) -> None:
    """Fill the arrays of results: log Z_out, shifts and covariances, or log Z_out and squares."""
    n, arrays = len(u), (u, V.reshape(-1, 2, 2), *fields[:2])
    u, V, Z, noise = (np.require(x, np.float64, ["C", "W"]) for x in arrays)  # others, read-only ones too, compile anew
    single = _single_is_enough(c, V, accuracy.fineness) if single is None else single
    refinement = quadtree.ROUGH if accuracy.rough else quadtree.CAREFUL
    given = float(c), u, (Z, noise, fields[2]), V, shares, (float(accuracy.fineness), float(accuracy.cut), *refinement)
    block, rules = quadtree.softmax_block if kind == SOFTMAX else quadtree.linear_block, _rules(single)
    threads = min(threads or available_cores(), max(2, n // _WORTH_A_THREAD))
    # The cost of a sample varies: small parts, so that no thread waits long for the last one; but while one is begun,
    # for the time of a sample or two, no other thread can begin its own.
    size = min(max(n // (8 * threads), 64), 256)

    def work(first: int) -> None:
        block(rules, first, min(first + size, n), *given, *results)

    each_in_parallel(work, range(0, n, size), min(threads, -(-n // size)))


@cache
def _rules(single: bool) -> np.ndarray:
    """Nodes and weights of the Gauss-Legendre rules of 1, 2, ... nodes, an array (2, n, node)."""
    rules = np.zeros((2, quadtree.MOST_NODES + 1, quadtree.MOST_NODES))
    for n in range(1, quadtree.MOST_NODES + 1):
        rules[0, n, :n], rules[1, n, :n] = np.polynomial.legendre.leggauss(n)
    return rules.astype(np.float32 if single else np.float64)


def _single_is_enough(c: float, V: Any, fineness: float) -> bool:
    """Whether single precision, in little more than half the time, adds nothing to the errors of the cubature.

    They are 1e-4 and more at this fineness. Rounding moves z2, by 1e-7 of itself over the skip strength, against a
    standard deviation: 1e-4 of that at the bounds.
    """
    if fineness < 2 or c < _LEAST_SKIP:
        return False
    v1, v2 = V[:, 0, 0], V[:, 1, 1] - V[:, 0, 1] ** 2 / V[:, 0, 0]
    return bool(min(v1.min(initial=1.0), v2.min(initial=1.0)) >= _LEAST_VARIANCE)
