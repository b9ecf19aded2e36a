"""Scrambled Sobol points: digital nets in base two, any block of a long sequence.

In each coordinate, point number n is the sum modulo two, digit by digit, of the direction numbers at those places where
the Gray code n ^ (n >> 1) has a one (Antonov and Saleev, 1979). The direction numbers are those of Joe and Kuo, SIAM J.
Sci. Comput. 30, 2635 (2008). A random lower triangular matrix acts on the digits, and a random shift is added
(Matousek, J. Complexity 14, 527 (1998)). The points equal those of ``scipy.stats.qmc.Sobol``. That class takes a second
or two to import and is used only for more coordinates than the table below has.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DIGITS = 52
"""Binary digits of a coordinate: with half a cell added it is still an exact float64."""

LARGEST_DIM = 21201
"""Number of coordinates for which Joe and Kuo give direction numbers."""

PLACES = 30
"""Base-2 logarithm of the length of a sequence: the number of direction numbers of every coordinate."""

Integers = NDArray[np.uint64]

#: For every coordinate after the first: the digits of a primitive polynomial, and the first numbers of its recurrence.
_TABLE = (
    (3, (1,)),
    (7, (1, 3)),
    (11, (1, 3, 1)),
    (13, (1, 1, 1)),
    (19, (1, 1, 3, 3)),
    (25, (1, 3, 5, 13)),
    (37, (1, 1, 5, 5, 17)),
    (41, (1, 1, 5, 5, 5)),
    (47, (1, 1, 7, 11, 19)),
    (55, (1, 1, 5, 1, 1)),
    (59, (1, 1, 1, 3, 11)),
    (61, (1, 3, 5, 5, 31)),
    (67, (1, 3, 3, 9, 7, 49)),
    (91, (1, 1, 1, 15, 21, 21)),
    (97, (1, 3, 1, 13, 27, 49)),
    (103, (1, 1, 1, 15, 7, 5)),
    (109, (1, 3, 1, 15, 13, 25)),
    (115, (1, 1, 5, 5, 19, 61)),
    (131, (1, 3, 7, 11, 23, 15, 103)),
    (137, (1, 3, 7, 13, 13, 15, 69)),
    (143, (1, 1, 3, 13, 7, 35, 63)),
    (145, (1, 3, 5, 9, 1, 25, 53)),
    (157, (1, 3, 1, 13, 9, 35, 107)),
    (167, (1, 3, 1, 5, 27, 61, 31)),
    (171, (1, 1, 5, 11, 19, 41, 61)),
    (185, (1, 3, 5, 3, 3, 13, 69)),
    (191, (1, 1, 7, 13, 1, 19, 1)),
    (193, (1, 3, 7, 5, 13, 19, 59)),
    (203, (1, 1, 3, 9, 25, 29, 41)),
    (211, (1, 3, 5, 13, 23, 1, 55)),
    (213, (1, 3, 7, 3, 13, 59, 17)),
    (229, (1, 3, 1, 3, 5, 53, 69)),
    (239, (1, 1, 5, 5, 23, 33, 13)),
    (241, (1, 1, 7, 7, 1, 61, 123)),
    (247, (1, 1, 7, 9, 13, 61, 49)),
    (253, (1, 3, 3, 5, 3, 55, 33)),
    (285, (1, 3, 1, 15, 31, 13, 49, 245)),
    (299, (1, 3, 5, 15, 31, 59, 63, 97)),
    (301, (1, 3, 1, 11, 11, 11, 77, 249)),
    (333, (1, 3, 1, 11, 27, 43, 71, 9)),
    (351, (1, 1, 7, 15, 21, 11, 81, 45)),
    (355, (1, 3, 7, 3, 25, 31, 65, 79)),
    (357, (1, 3, 1, 1, 19, 11, 3, 205)),
    (361, (1, 1, 5, 9, 19, 21, 29, 157)),
    (369, (1, 3, 7, 11, 1, 33, 89, 185)),
    (391, (1, 3, 3, 3, 15, 9, 79, 71)),
    (397, (1, 3, 7, 11, 15, 39, 119, 27)),
    (425, (1, 1, 3, 1, 11, 31, 97, 225)),
    (451, (1, 1, 1, 3, 23, 43, 57, 177)),
    (463, (1, 3, 7, 7, 17, 17, 37, 71)),
    (487, (1, 3, 1, 5, 27, 63, 123, 213)),
    (501, (1, 1, 3, 5, 11, 43, 53, 133)),
    (529, (1, 3, 5, 5, 29, 17, 47, 173, 479)),
    (539, (1, 3, 3, 11, 3, 1, 109, 9, 69)),
    (545, (1, 1, 1, 5, 17, 39, 23, 5, 343)),
    (557, (1, 3, 1, 5, 25, 15, 31, 103, 499)),
    (563, (1, 1, 1, 11, 11, 17, 63, 105, 183)),
    (601, (1, 1, 5, 11, 9, 29, 97, 231, 363)),
    (607, (1, 1, 5, 15, 19, 45, 41, 7, 383)),
    (617, (1, 3, 7, 7, 31, 19, 83, 137, 221)),
    (623, (1, 1, 1, 3, 23, 15, 111, 223, 83)),
    (631, (1, 1, 5, 13, 31, 15, 55, 25, 161)),
    (637, (1, 1, 3, 13, 25, 47, 39, 87, 257)),
)


def sobol_points(count: int, dim: int, seed: tuple[int, ...], block: int = 0) -> Integers:
    """Return points (count, dim) of a scrambled sequence as integers below 2^52, from point number block * count on.

    ``count`` is a power of two. ``seed`` determines the scrambling.
    """
    places = count.bit_length() - 1
    directions, shift = _scrambled(dim, seed, (count * (block + 1) - 1).bit_length())
    # The numbers of a block have the same lower digits as the first block, and upper digits common to all of them.
    upper = block ^ (block >> 1)
    common = shift.copy()
    for place in range(upper.bit_length()):
        if upper >> place & 1:
            common ^= directions[:, places + place]
    if block & 1 and places:
        common ^= directions[:, places - 1]
    points = np.empty((count, dim), np.uint64)
    points[0] = common
    for place in range(places):  # Gray codes from 2^place on: the smaller ones in reverse, with one more digit
        points[1 << place : 2 << place] = points[: 1 << place][::-1] ^ directions[:, place]
    return points


@lru_cache(maxsize=64)
def _scrambled(dim: int, seed: tuple[int, ...], places: int) -> tuple[Integers, Integers]:
    """Return ``places`` scrambled direction numbers of each coordinate (dim, places), and random shifts (dim,)."""
    generator = np.random.default_rng(list(seed)).spawn(1)[0]
    shift = generator.integers(2, size=(dim, DIGITS), dtype=np.uint64) @ _powers()
    matrices = np.tril(generator.integers(2, size=(dim, DIGITS, DIGITS), dtype=np.uint64))
    matrices[:, np.arange(DIGITS), np.arange(DIGITS)] = 1
    rows = matrices @ _powers()[::-1]  # a row acts on digits from the highest downwards
    # Digit i of a product is the parity of the ones that row i and the number share.
    common = np.bitwise_count(rows[:, :, None] & direction_numbers(dim, places)[:, None, :]) & 1
    return np.einsum("dij,i->dj", common.astype(np.uint64), _powers()[::-1]), shift


def _powers() -> Integers:
    return np.uint64(1) << np.arange(DIGITS, dtype=np.uint64)


@lru_cache(maxsize=16)
def direction_numbers(dim: int, places: int) -> Integers:
    """Return unscrambled direction numbers (dim, places), integers below 2^52 whose bit 51 is the first digit."""
    if dim > len(_TABLE) + 1:
        return _from_scipy(dim, places)[:, :places]
    numbers = np.ones((dim, DIGITS), np.uint64)
    for row, (polynomial, first) in zip(numbers[1:], _TABLE, strict=False):
        row[:] = _recurrence(polynomial, first)
    return (numbers * _powers()[::-1])[:, :places]


def _recurrence(polynomial: int, first: tuple[int, ...]) -> list[int]:
    """Return the `DIGITS` numbers m_j = 2 a_1 m_{j-1} ^ 4 a_2 m_{j-2} ^ ... ^ 2^s m_{j-s} ^ m_{j-s} of a coordinate.

    The s numbers ``first`` begin the list; a_1, ..., a_s are the binary digits of ``polynomial`` after its leading one.
    """
    numbers, degree = list(first), len(first)
    for j in range(degree, DIGITS):
        new = numbers[j - degree]
        for k in range(1, degree + 1):
            if polynomial >> (degree - k) & 1:
                new ^= numbers[j - k] << k
        numbers.append(new)
    return numbers


def _from_scipy(dim: int, places: int) -> Integers:
    """Return numbers (dim, 52), of which the first ``places`` columns are direction numbers from scipy's points.

    Each is the difference of two points whose Gray codes differ in one place.

    Direction number k has at most k digits, so that PLACES digits suffice. With more digits scipy cannot skip points.
    """
    from scipy.stats import qmc

    numbers = np.zeros((dim, DIGITS), np.uint64)
    sequence = qmc.Sobol(dim, scramble=False, bits=PLACES)
    last = sequence.random(1)[0]
    for place in range(places):
        first = sequence.random(1)[0]  # point number 2^place
        numbers[:, place] = (last * 2.0**DIGITS).astype(np.uint64) ^ (first * 2.0**DIGITS).astype(np.uint64)
        if place > 0:
            sequence.fast_forward((1 << place) - 2)
        last = sequence.random(1)[0] if place > 0 else first
    return numbers
