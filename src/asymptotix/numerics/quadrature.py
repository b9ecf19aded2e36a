"""Gaussian averages with common nodes: Gauss-Hermite rules and randomised quasi-Monte Carlo.

Every average in a theory uses the same nodes at every iteration. The iterated map is therefore deterministic, and its
fixed point exists to machine precision. The numerical error of a randomised average comes from the spread of
independent randomisations of the same rule, never from fresh draws.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, roots_hermitenorm, stdtrit

from . import checks
from .sobol import DIGITS, LARGEST_DIM, PLACES, sobol_points

MAX_ENTRIES = 2**27
"""Largest table of nodes that is built, in numbers (1 GiB of float64)."""


class Estimate(NamedTuple):
    """A numerical estimate: a number or an array ``value``, and its standard error ``error`` of the same shape."""

    value: NDArray[np.float64]
    error: NDArray[np.float64]


def error_of_mean(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard error (...) of the mean over the R rows of an array (R, ...), enlarged by Student's t.

    Three such errors contain the true mean with the probability of three standard deviations of a normal law. The
    scatter of a small number of rows is sometimes small by chance, and an adaptive average would stop just then. The
    factor is 1.5 for 8 rows and 1.04 for 64. For one row, a deterministic average, the error is zero.
    """
    count = len(rows)
    if count == 1:
        return np.zeros(rows.shape[1:])
    return stdtrit(count - 1, ndtr(3.0)) / 3 * rows.std(0, ddof=1) / np.sqrt(count)


def gauss_hermite(order: int, dim: int = 1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the tensor Gauss-Hermite rule for the standard normal law N(0, I).

    The rule is exact for polynomials of degree at most ``2 * order - 1`` in each coordinate.

    Parameters
    ----------
    order : int
        Number of nodes per axis.
    dim : int
        Number of coordinates; the rule has ``order**dim`` nodes.

    Returns
    -------
    nodes : array (order**dim, dim)
        Nodes, of which the first coordinate varies slowest.
    weights : array (order**dim,)
        Positive weights that sum to one.
    """
    order, dim = checks.integer("order", order, 1), checks.integer("dim", dim, 1)
    _refuse_large(order**dim * (dim + 1), f"order**dim = {order}**{dim} Gauss-Hermite nodes", "sobol_normals")
    points, masses = roots_hermitenorm(order)
    masses = masses / masses.sum()
    nodes = np.stack(np.meshgrid(*[points] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    weights = np.ones(1)
    for _ in range(dim):
        weights = np.multiply.outer(weights, masses).ravel()
    return nodes, weights


def sobol_uniforms(count: int, dim: int, seed: int | Sequence[int], *, block: int = 0) -> NDArray[np.float64]:
    """Return scrambled Sobol points in the open unit cube.

    Coordinates are ``(k + 1/2) / 2**52`` with integer k, the centres of cells, so that they are never 0 or 1.

    Parameters
    ----------
    count : int
        Number of points, a power of two (the balance of the net is lost otherwise).
    dim : int
        Number of coordinates.
    seed : int or sequence of int
        Non-negative; a sequence folds further numbers into the seed, and (s, 0), (s, 1), ... are independent
        scramblings.
    block : int
        Number of the block of ``count`` points in a longer sequence. Every block is a net, and all blocks together
        fill the cube as evenly as one long sequence.

    Returns
    -------
    array (count, dim)
    """
    count, dim = checks.integer("count", count, 1), checks.integer("dim", dim, 1)
    if count & (count - 1):
        below = 1 << (count.bit_length() - 1)
        raise ValueError(f"count must be a power of two, got {count}; the nearest are {below} and {2 * below}")
    if dim > LARGEST_DIM:
        raise ValueError(f"dim must be at most {LARGEST_DIM} for Sobol points, got {dim}")
    _refuse_large(count * dim, f"count * dim = {count} * {dim} Sobol coordinates", "fewer points")
    parts = tuple(seed) if isinstance(seed, Sequence) else (seed,)
    parts = tuple(checks.integer("seed", part, 0) for part in parts)
    block = checks.integer("block", block, 0)
    if count * (block + 1) > 1 << PLACES:
        last = (1 << PLACES) // count - 1
        raise ValueError(
            f"block must be at most {last} with count = {count}, for a sequence ends at 2^{PLACES}; got {block}"
        )
    return (sobol_points(count, dim, parts, block).astype(np.float64) + 0.5) * 0.5**DIGITS


def sobol_normals(count: int, dim: int, seed: int | Sequence[int]) -> NDArray[np.float64]:
    """Return independent standard normals (count, dim): the points of :func:`sobol_uniforms`, mapped.

    The normals are at most 8.2 in absolute value without any clipping.
    """
    return ndtri(sobol_uniforms(count, dim, seed))


@lru_cache(maxsize=16)
def _kept_normals(count: int, dim: int, *seed: int) -> NDArray[np.float64]:
    """Return ``sobol_normals(count, dim, seed)``, read-only and cached: the next point of a curve needs them again.

    All nodes of one coordinate are contiguous in memory: NumPy is slow on axes as short as the number of coordinates.
    """
    nodes = np.asfortranarray(sobol_normals(count, dim, seed))
    nodes.flags.writeable = False
    return nodes


def randomised_average(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    count: int,
    dim: int,
    *,
    randomisations: int = 4,
    seed: int = 0,
) -> Estimate:
    """Return the average of a function of standard normals, with an error from independent randomisations.

    Randomisation r uses the nodes ``sobol_normals(count, dim, (seed, r))``: calls with equal arguments share
    their nodes, so the average is a deterministic function of the parameters of the integrand.

    Parameters
    ----------
    function : callable
        Maps nodes (count, dim) to values (count, ...); a non-finite value makes its own error NaN.
    count, dim : int
        Number of points per randomisation (a power of two) and number of normals.
    randomisations : int
        Number of randomisations, at least 2.
    seed : int
        Non-negative.

    Returns
    -------
    Estimate
        Mean over all randomisations, and its standard error. With R randomisations this error is itself uncertain by
        a relative 1/sqrt(2(R-1)), 41 % for R = 4.
    """
    randomisations = checks.integer("randomisations", randomisations, 2)

    def mean(index: int) -> NDArray[np.float64]:
        values = np.asarray(function(_kept_normals(count, dim, seed, index)), dtype=np.float64)
        if values.ndim == 0 or values.shape[0] != count:
            raise ValueError(f"function must return one row per node, ({count}, ...), got shape {values.shape}")
        return values.mean(axis=0)

    table = np.stack([mean(index) for index in range(randomisations)])
    return Estimate(table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(randomisations))


def _refuse_large(entries: int, what: str, instead: str) -> None:
    if entries > MAX_ENTRIES:
        raise ValueError(f"{what} need {8 * entries / 2**30:.3g} GiB, more than the limit of 1 GiB: use {instead}")
