"""Resizing grey images as Pillow does, bit for bit and many at a time.

Pillow's bilinear filter is a triangle whose half width is one pixel of the smaller image, sampled at the centres of
the pixels and normalised. It is rounded to multiples of 2^-22; rows are resized first and rounded to whole grey values,
then columns.
"""

from __future__ import annotations

import numpy as np

from ...numerics.threads import one_blas_thread

_FRACTION_BITS = 22
#: Bytes of the doubles that one block of images takes before it is resized.
_BLOCK_BYTES = 2**24
#: Pixels that are computed together.
_BAND = 16


def resize_bilinear(images: np.ndarray, size: int) -> np.ndarray:
    """Resize images (..., height, width) of uint8 to (..., size, size), as ``PIL.Image.resize`` with BILINEAR does."""
    *many, height, width = images.shape
    flat = images.reshape(-1, height, width)
    resized = np.empty((len(flat), size, size), np.uint8)
    along_rows, along_columns = _weights(width, size), _weights(height, size)
    step = max(_BLOCK_BYTES // (8 * height * width), 1)
    with one_blas_thread():  # of products as flat as these, several threads make no more in less time
        for start in range(0, len(flat), step):
            block = slice(start, start + step)
            narrow = _applied(flat[block], along_rows)
            resized[block] = _applied(narrow.swapaxes(1, 2), along_columns).swapaxes(1, 2)
    return resized.reshape(*many, size, size)


def _weights(before: int, after: int) -> np.ndarray:
    """Weights (before, after) of the filter in units of 2^-22: whole numbers, as doubles."""
    scale = before / after
    half_width = max(scale, 1.0)
    centres = (np.arange(after) + 0.5) * scale
    distance = np.abs(np.arange(before)[:, None] + 0.5 - centres) / half_width
    weights = np.maximum(1 - distance, 0.0)
    # Pillow leaves out what lies beyond the rounded ends of the filter; no weight of a triangle does.
    return np.floor(weights / weights.sum(axis=0) * 2**_FRACTION_BITS + 0.5)


def _applied(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One direction of the filter, rounded. Sums stay below 2^31, so that doubles are exact."""
    # One product of two matrices: a stack of small ones is several times slower. And only where weights are: a pixel
    # depends on its neighbours alone.
    rows = images.reshape(-1, images.shape[-1]).astype(float)
    grey = np.empty((len(rows), weights.shape[1]), np.uint8)
    for start in range(0, weights.shape[1], _BAND):
        band = slice(start, start + _BAND)
        used = np.flatnonzero(weights[:, band].any(axis=1))
        near = slice(used[0], used[-1] + 1)
        summed = rows[:, near] @ weights[near, band]
        grey[:, band] = np.clip(np.floor(summed * 2.0**-_FRACTION_BITS + 0.5), 0, 255)
    return grey.reshape(*images.shape[:-1], -1)
