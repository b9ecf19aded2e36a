"""Adaptive cubature of batches of samples of two layers, on all cores: posteriors, or squared scores for averages."""

from __future__ import annotations

from functools import cache

import numpy as np

from ....numerics.threads import available_cores, each_in_parallel
from ..protocol import DEFAULT_ACCURACY, Accuracy
from . import quadtree
from .activation_kinds import SOFTMAX

_WORTH_A_THREAD = 256  # least samples per thread: with fewer, more than two threads take longer than two
# Least skip strength and least variance of an index for single precision.
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
    """Return log Z_out (n,), E[Z|y] - omega (n, 4) and Cov[Z|y] (n, 4, 4) for a batch of samples.

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
        Fineness, cut and roughness of the cubature.
    single : bool, optional
        Whether to use single precision; by default where that adds nothing to the errors.
    threads : int, optional
        Number of threads, by default the number of cores.
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
    """Return log Z_out (n,) and squares (4, n) at diagonal V (2, 2): estimates of E|g_l|^2, then |G_ll|_F^2, l = 1, 2.

    Posteriors are not stored: writing them and computing scores from them would take a fifth of the cubature's time on
    two cores, and six tenths of it on sixteen.

    Parameters
    ----------
    fields : arrays (n, 4), (n, 4), (4,)
        True indices Z, noise, and factors (m_1, m_2, m_3, m_4): omega_1 = m_1 Z_1 + m_3 noise_1 and
        omega_2 = m_2 Z_2 + m_4 noise_2.
    shares : array (2,)
        Weights of the estimator -tr G_ll of E|g_l|^2; the weights of |g_l|^2 are one minus these.
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
    """Fill ``results``: log Z_out (n,), shifts (n, 4), covariances (n, 4, 4), squares (4, n), some of them empty.

    If the squares are empty, posteriors are computed, otherwise squares. Arguments are those of :func:`score_squares`.
    """
    n, arrays = len(u), (u, V.reshape(-1, 2, 2), *fields[:2])
    u, V, Z, noise = (np.require(x, np.float64, ["C", "W"]) for x in arrays)  # other or read-only arrays compile again
    single = _single_is_enough(c, V, accuracy.fineness) if single is None else single
    refinement = quadtree.ROUGH if accuracy.rough else quadtree.CAREFUL
    given = float(c), u, (Z, noise, fields[2]), V, shares, (float(accuracy.fineness), float(accuracy.cut), *refinement)
    block, rules = quadtree.softmax_block if kind == SOFTMAX else quadtree.linear_block, _rules(single)
    threads = min(threads or available_cores(), max(2, n // _WORTH_A_THREAD))
    # The cost of samples varies: parts are small, so that no thread waits long for the last part. But starting a part
    # takes the time of a sample or two, during which no other thread can start one.
    size = min(max(n // (8 * threads), 64), 256)

    def work(first: int) -> None:
        block(rules, first, min(first + size, n), *given, *results)

    each_in_parallel(work, range(0, n, size), min(threads, -(-n // size)))


@cache
def _rules(single: bool) -> np.ndarray:
    """Return the Gauss-Legendre rules of n = 1, 2, ... nodes, an array (2, n, node): nodes first, then weights."""
    rules = np.zeros((2, quadtree.MOST_NODES + 1, quadtree.MOST_NODES))
    for n in range(1, quadtree.MOST_NODES + 1):
        rules[0, n, :n], rules[1, n, :n] = np.polynomial.legendre.leggauss(n)
    return rules.astype(np.float32 if single else np.float64)


def _single_is_enough(c: float, V: np.ndarray, fineness: float) -> bool:
    """Return whether single precision, in little more than half the time, adds nothing to the errors of the cubature.

    At a fineness of 2 or more these errors are at least 1e-4. Rounding moves z2 by a relative 1e-7 over the skip
    strength; at the bounds that is 1e-4 of a standard deviation.
    """
    if fineness < 2 or c < _LEAST_SKIP:
        return False
    v1, v2 = V[:, 0, 0], V[:, 1, 1] - V[:, 0, 1] ** 2 / V[:, 0, 0]
    return bool(min(v1.min(initial=1.0), v2.min(initial=1.0)) >= _LEAST_VARIANCE)
