"""Sequences of three images as tokens: two labelled images and a query of the same class as one of them.

An image of 32 x 32 is cut into 16 patches of 8 x 8, row by row. The grey value is repeated for three channels, so that
a patch has 192 entries in the order (row, column, channel). Each patch is standardised over its entries. A token is
such a patch, plus a sinusoidal position over the 48 tokens, plus one of three fixed normal vectors that marks the whole
image as "-", "+" or "?". Positions and these vectors are the same for all sets of images and all seeds.

Tiberi et al., arXiv:2405.15926, section 4.2 and appendix H, with the details of the authors' released code.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..numerics import checks
from ..numerics.arrays import Array
from ..numerics.memory import refuse_beyond_memory

if TYPE_CHECKING:
    import jax
    from jax.typing import DTypeLike

    Kind = TypeVar("Kind", np.ndarray, jax.Array)

PIXELS, PATCH, CHANNELS = 32, 8, 3
IMAGES = 3
PATCHES = (PIXELS // PATCH) ** 2
TOKENS = IMAGES * PATCHES
FEATURES = CHANNELS * PATCH**2

#: Seed of the three label vectors, which do not depend on the task's seed.
_LABEL_VECTORS = 1
#: Rows of the label vectors: for the image whose class means -1, for the other image, and for the query.
_MINUS, _PLUS, _QUERY = 0, 1, 2

#: Number that the usual layer normalisation adds to the variance of a patch; a blank patch becomes zeros.
_EPSILON = 1e-5
#: Random numbers per sequence: two classes, two drawings, which image means +1, drawing of the query, its label.
_NUMBERS = 7


@dataclass(frozen=True, eq=False)
class ImageSequences:
    """Random sequences from a set of classes: an image of each of two classes, and another image of one of the two.

    The label of a sequence is that of the labelled image whose class the query shares. An object of this class is a
    pytree of JAX. Given to a compiled function as an argument, its images are not compiled into the program.

    Attributes
    ----------
    patches : uint8 array (classes, images, 16, 64)
        Grey values, see `cut_into_patches`.
    variance_floor : float
        Number added to the variance of a patch (grey values in [0, 1]) before the patch is divided by its root.
    stream : int
        Number of the random stream, which makes the examples of two sets with the same seed independent.
    """

    patches: Array
    variance_floor: float
    stream: int

    def __post_init__(self) -> None:
        _register()

    @property
    def epoch(self) -> int:
        """Number of pairs of different classes."""
        return math.comb(len(self.patches), 2)

    def draw(self, key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        """Return random sequences, float32 (count, 48, 192), and their labels (count,), +1 or -1; may be compiled.

        A sequence depends only on ``key``, of JAX's random numbers, and on its number: a larger count begins with the
        same sequences.
        """
        import jax
        import jax.numpy as jnp

        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(count))
        bits = jax.vmap(lambda one: jax.random.bits(one, (_NUMBERS,), jnp.uint32))(keys)
        plus = bits[:, -1] % 2 == 1
        inputs = self._sequences(bits, plus, jnp, jnp.float32)
        return inputs, jnp.where(plus, 1, -1).astype(jnp.float32)

    def examples(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return fixed sequences (count, 48, 192) and labels (count,) in float64, label +1 before label -1.

        Half have each label; an odd count has one more of label +1. A larger count includes the same sequences.
        """
        count, seed = checks.integer("count", count, 2), checks.integer("seed", seed, 0)
        refuse_beyond_memory(
            3 * 8 * count * TOKENS * FEATURES, f"{count} sequences of {IMAGES} images", "fewer examples"
        )
        sizes = {True: (count + 1) // 2, False: count // 2}
        made = []
        for plus, size in sizes.items():
            bits = random_bits([seed, self.stream, int(plus)], size)
            made.append(self._sequences(bits, np.full(size, plus), np, np.float64))
        return np.concatenate(made), labels_in_order(count)

    def _sequences(self, bits: Kind, plus: Kind, xp: ModuleType, dtype: DTypeLike) -> Kind:
        """Return sequences (count, 48, 192) from random numbers ``bits``, uint32 (count, 7).

        Labels are +1 where ``plus`` (count,) is true. ``xp`` is numpy or jax.numpy.
        """
        classes, drawings = self.patches.shape[:2]
        first, second, order = bits[:, 0] % classes, bits[:, 1] % (classes - 1), bits[:, 4] % 2 == 1
        second = (first + 1 + second) % classes  # another class, all equally likely
        drawn_first, drawn_second = bits[:, 2] % drawings, bits[:, 3] % drawings
        like_first = order == plus
        shown = xp.where(like_first, drawn_first, drawn_second)
        drawn_query = (shown + 1 + bits[:, 5] % (drawings - 1)) % drawings  # never the image that is shown
        of_class = xp.stack([first, second, xp.where(like_first, first, second)], axis=1)
        drawing = xp.stack([drawn_first, drawn_second, drawn_query], axis=1)
        kinds = xp.stack([xp.where(order, _PLUS, _MINUS), xp.where(order, _MINUS, _PLUS)], axis=1)
        patches = xp.asarray(self.patches)[of_class, drawing]
        return as_tokens(patches, kinds, self.variance_floor, xp, dtype)


def fixed_order_examples(
    minus: np.ndarray, plus: np.ndarray, variance_floor: float, count: int, seed: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (count, 48, 192) of an image of ``minus``, one of ``plus`` and a query, and labels (count,).

    Each class is given by patches (images, 16, 64). Label +1 (the query is of ``plus``) comes before label -1. The
    queries of a class are its images in random order, which repeat only after all have been used.
    """
    sizes = {1: (count + 1) // 2, 0: count // 2}
    classes = (minus, plus)
    made = []
    for own, size in sizes.items():
        numbers = [len(images) for images in classes]
        query = np.resize(np.random.default_rng([*seed, own, 0]).permutation(numbers[own]), size)
        bits = random_bits([*seed, own, 1], size)
        shown = [bits[:, side] % numbers[side] for side in (0, 1)]
        shown[own] = (query + 1 + bits[:, own] % (numbers[own] - 1)) % numbers[own]
        patches = np.stack([minus[shown[0]], plus[shown[1]], classes[own][query]], axis=1)
        kinds = np.broadcast_to([_MINUS, _PLUS], (size, 2))
        made.append(as_tokens(patches, kinds, variance_floor, np, np.float64))
    return np.concatenate(made), labels_in_order(count)


def as_tokens(patches: Kind, kinds: Kind, variance_floor: float, xp: ModuleType, dtype: DTypeLike) -> Kind:
    """Return the tokens (count, 48, 192) of sequences of three images, given as ``patches`` (count, 3, 16, 64).

    ``kinds`` (count, 2) has the rows of :func:`label_vectors` for the first two images. ``xp`` is numpy or jax.numpy.
    """
    count = len(patches)
    grey = standardized(patches.astype(dtype) / 255, variance_floor, xp)
    kinds = xp.concatenate([kinds, xp.full((count, 1), _QUERY)], axis=1)
    labels = xp.asarray(label_vectors(), dtype)[kinds][:, :, None]
    places = xp.asarray(positions(), dtype).reshape(IMAGES, PATCHES, FEATURES)
    return (xp.repeat(grey, CHANNELS, axis=-1) + places + labels).reshape(count, TOKENS, FEATURES)


def standardized(patches: Kind, variance_floor: float, xp: ModuleType) -> Kind:
    """Return ``patches`` (..., 64), each with mean 0 and variance v / (v + floor): almost 1, or 0 for a blank patch.

    v is the variance before, floor the ``variance_floor``; ``xp`` is numpy or jax.numpy. Repeated channels change
    neither mean nor variance: this is layer normalisation of the 192 entries.
    """
    centred = patches - patches.mean(axis=-1, keepdims=True)
    return centred / xp.sqrt((centred**2).mean(axis=-1, keepdims=True) + variance_floor)


def variance_floor(deviation: float) -> float:
    """Return the epsilon with which layer normalisation of grey values equals that of values divided by ``deviation``.

    The usual epsilon belongs to the divided values. Layer normalisation removes all other effects of the division, and
    of a subtracted mean.
    """
    return _EPSILON * deviation**2


def _resized(images: np.ndarray) -> np.ndarray:
    """Return images (..., height, width) of uint8, resized to (..., 32, 32) by Pillow's bilinear filter."""
    from PIL import Image

    flat = images.reshape(-1, *images.shape[-2:])
    resized = np.empty((len(flat), PIXELS, PIXELS), np.uint8)
    for new, old in zip(resized, flat, strict=True):
        new[:] = np.asarray(Image.fromarray(old).resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))
    return resized.reshape(*images.shape[:-2], PIXELS, PIXELS)


def cut_into_patches(images: np.ndarray) -> np.ndarray:
    """Return images (..., height, width) of uint8, ink 255, as patches (..., 16, 64), after a resize to 32 x 32."""
    side = PIXELS // PATCH
    resized = _resized(images)
    cut = resized.reshape(*images.shape[:-2], side, PATCH, side, PATCH).swapaxes(-3, -2)
    return cut.reshape(*images.shape[:-2], PATCHES, PATCH**2)


@lru_cache(maxsize=1)
def positions() -> np.ndarray:
    """Return the position vectors (48, 192) of the tokens, a table of mean 0 and variance 1.

    Sines and cosines alternate, at rates from 1 to about 10^-4 per token.
    """
    rates = 10_000.0 ** (-np.arange(0, FEATURES, 2) / FEATURES)
    angles = np.arange(TOKENS)[:, None] * rates
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(TOKENS, FEATURES)
    return (table - table.mean()) / table.std()


@lru_cache(maxsize=1)
def label_vectors() -> np.ndarray:
    """Return the vectors (3, 192) that mark an image of label -1, an image of label +1, and the query."""
    return np.random.default_rng([_LABEL_VECTORS]).standard_normal((IMAGES, FEATURES))


def labels_in_order(count: int) -> np.ndarray:
    """Return labels (count,): +1 for the first half of the examples, rounded up, and -1 for the rest."""
    return np.where(np.arange(count) < (count + 1) // 2, 1.0, -1.0)


def random_bits(seed: list[int], count: int) -> np.ndarray:
    """Return random numbers, uint32 (count, 7), of one seed; a larger count begins with the same numbers."""
    return np.random.default_rng(seed).integers(0, 2**32, (count, _NUMBERS), dtype=np.uint32)


@lru_cache(maxsize=1)
def _register() -> None:
    """Register `ImageSequences` with JAX, on first use, because importing JAX takes long."""
    import jax

    with contextlib.suppress(ValueError):  # another thread has just done it
        jax.tree_util.register_dataclass(
            ImageSequences, data_fields=["patches", "variance_floor"], meta_fields=["stream"]
        )
