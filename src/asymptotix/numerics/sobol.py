"""Scrambled Sobol points of few coordinates, the same to the last bit as those of scipy.stats.qmc.

That module takes longer to import than most averages take.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BITS = 52
"""Binary digits of a coordinate: with half a cell added it is still an exact float64."""

Integers = NDArray[np.uint64]

#: Primitive polynomial and first direction numbers of every coordinate but the first: S. Joe and F. Y. Kuo, SIAM J.
#: Sci. Comput. 30, 2635 (2008), the set new-joe-kuo-6.
_TABLE = (
    (3, 1), (7, 1, 3), (11, 1, 3, 1), (13, 1, 1, 1), (19, 1, 1, 3, 3), (25, 1, 3, 5, 13), (37, 1, 1, 5, 5, 17),
    (41, 1, 1, 5, 5, 5), (47, 1, 1, 7, 11, 19), (55, 1, 1, 5, 1, 1), (59, 1, 1, 1, 3, 11), (61, 1, 3, 5, 5, 31),
    (67, 1, 3, 3, 9, 7, 49), (91, 1, 1, 1, 15, 21, 21), (97, 1, 3, 1, 13, 27, 49), (103, 1, 1, 1, 15, 7, 5),
    (109, 1, 3, 1, 15, 13, 25), (115, 1, 1, 5, 5, 19, 61), (131, 1, 3, 7, 11, 23, 15, 103),
    (137, 1, 3, 7, 13, 13, 15, 69), (143, 1, 1, 3, 13, 7, 35, 63), (145, 1, 3, 5, 9, 1, 25, 53),
    (157, 1, 3, 1, 13, 9, 35, 107), (167, 1, 3, 1, 5, 27, 61, 31), (171, 1, 1, 5, 11, 19, 41, 61),
    (185, 1, 3, 5, 3, 3, 13, 69), (191, 1, 1, 7, 13, 1, 19, 1), (193, 1, 3, 7, 5, 13, 19, 59),
    (203, 1, 1, 3, 9, 25, 29, 41), (211, 1, 3, 5, 13, 23, 1, 55), (213, 1, 3, 7, 3, 13, 59, 17),
    (229, 1, 3, 1, 3, 5, 53, 69), (239, 1, 1, 5, 5, 23, 33, 13), (241, 1, 1, 7, 7, 1, 61, 123),
    (247, 1, 1, 7, 9, 13, 61, 49), (253, 1, 3, 3, 5, 3, 55, 33), (285, 1, 3, 1, 15, 31, 13, 49, 245),
    (299, 1, 3, 5, 15, 31, 59, 63, 97), (301, 1, 3, 1, 11, 11, 11, 77, 249),
)  # fmt: skip

MOST_COORDINATES = len(_TABLE) + 1
"""Coordinates that the table is for."""


def sobol_block(count: int, dim: int, seed: tuple[int, ...], number: int) -> NDArray[np.float64]:
    """Points number * count, ..., (number + 1) * count - 1, a power of two of them, in [0, 1)^dim."""
    directions, first = _scrambled(dim, seed)
    # Point i is the sum modulo two of the directions at the binary digits of i ^ (i >> 1).
    code, last = number ^ (number >> 1), count.bit_length() - 1
    for digit in range(code.bit_length()):
        if code >> digit & 1:
            first = first ^ directions[last + digit]
    if number & 1 and last:
        first = first ^ directions[last - 1]
    points = first[None]
    for direction in directions[:last]:
        points = np.concatenate([points, points[::-1] ^ direction])
    return points * 0.5**BITS


@lru_cache(maxsize=64)
def _scrambled(dim: int, seed: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Directions (BITS, dim) and the first point (dim,) after a random linear matrix scramble and a digital shift."""
    generator = np.random.default_rng(list(seed)).spawn(1)[0]  # as scipy does it
    shift = generator.integers(2, size=(dim, BITS), dtype=np.uint64) @ _powers()
    random = generator.integers(2, size=(dim, BITS, BITS), dtype=np.uint64)
    matrices = np.tril(random, -1) + np.eye(BITS, dtype=np.uint64)
    digits = np.stack([_digits(place) for place in range(dim)]) @ matrices.swapaxes(1, 2) & np.uint64(1)
    return (digits @ _powers()[::-1]).T, shift


def _powers() -> Integers:
    return np.uint64(1) << np.arange(BITS, dtype=np.uint64)


@lru_cache(maxsize=MOST_COORDINATES)
def _digits(place: int) -> Integers:
    """Binary digits (BITS, BITS) of the directions of a coordinate, the highest digit first."""
    polynomial, *numbers = _TABLE[place - 1] if place else (1, *[1] * BITS)
    degree = polynomial.bit_length() - 1
    for j in range(len(numbers), BITS):
        following = numbers[j - degree]
        for k in range(1, degree + 1):
            if polynomial >> (degree - k) & 1:
                following ^= numbers[j - k] << k
        numbers.append(following)
    values = np.array([number << (BITS - 1 - j) for j, number in enumerate(numbers)], np.uint64)
    return values[:, None] >> np.arange(BITS, dtype=np.uint64)[::-1] & np.uint64(1)
