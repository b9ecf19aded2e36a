"""Gaussian tokens of several data sets, either kept in memory or drawn again in every pass.

Every algorithm here uses the tokens X (S data sets, N samples, M tokens, D coordinates) in passes of one kind,

    fields = X W / sqrt(D),      g = score(fields),      b = X^T g / sqrt(D),

in which a sample's score depends on its own fields only. A pass therefore goes through the samples block by block and
holds one block at a time. Tokens are drawn in tiles of a fixed number of samples, each tile from its own key. Hence
tokens do not depend on the size of the blocks, nor on whether they are kept or drawn again.

If rows of the weights act on different parts of the data (the heads of attention), a sample holds the tokens of all
parts one after the other, and each row sees the tokens of its own part.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import interrupts
from ...numerics.arrays import Array
from ...numerics.memory import physical_memory
from ..models.rank_one import array_namespace
from .placed_arrays import compiled_for_jax, on_cpu

#: Number of samples drawn from one key. Another number gives other tokens.
TILE = 256
#: Size of a block in bytes if tokens are not kept, on a CPU and on an accelerator; and the largest share of an
#: accelerator's memory that a block takes.
_BLOCK_BYTES, _BLOCK_SHARE = (2**27, 2**33), 1 / 8
#: Bytes of tokens between two checks for interrupts; drawing them takes well below a second.
_SHORT_BYTES = 2**26
#: Large blocks are multiples of this number of tiles (8192 samples, the block size of channels on an accelerator).
_TILES_TOGETHER = 32


class Tokens(abc.ABC):
    """Tokens of S data sets of equal size.

    Attributes
    ----------
    shape : tuple (S, N, M, D)
        With H parts of the data, M counts all tokens, M/H of each part.
    groups : tuple of int or None
        Part of the data on which each row of the weights acts; None if there is only one part.
    """

    shape: tuple[int, int, int, int]
    groups: tuple[int, ...] | None = None

    def fields_of(self, X: Array, W: Array) -> Array:
        """Return X W / sqrt(D), (S, n, P, M/H), for tokens X (S, n, M, D) and weights W (S, P, D).

        W may hold several sets of rows one after the other; P then counts all of them.
        """
        return fields(X, W, self._groups_of(W.shape[1]))

    def gathered_of(self, X: Array, g: Array) -> Array:
        """Return X^T g / sqrt(D), (S, P, D), for scores g (S, n, P, M/H) and tokens X (S, n, M, D)."""
        return gathered(X, g, self._groups_of(g.shape[2]))

    def _groups_of(self, rows: int) -> tuple[int, ...] | None:
        return None if self.groups is None else self.groups * (rows // len(self.groups))

    @abc.abstractmethod
    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Yield block after block: the slice of its samples, and their tokens (S, n, M, D)."""

    @abc.abstractmethod
    def of_seed(self, k: int) -> Tokens:
        """Return the tokens of data set number k alone."""

    def fields(self, W: Array) -> Array:
        """Return X W / sqrt(D), (S, N, P, M), for weights W (S, P, D)."""
        parts = []
        for _, X in self.blocks():
            may_stop()
            parts.append(jax.block_until_ready(self.fields_of(X, W)))
            del X  # otherwise it would stay in memory while the next block is drawn
        return joined(parts)

    def sweep(self, W: Array, score: Callable[[slice, Array], Array]) -> Array:
        """Return X^T g / sqrt(D), (S, P, D), with scores g = score(samples, fields) shaped like fields (S, n, P, M)."""
        total: Any = None
        for samples, X in self.blocks():
            may_stop()
            part = self.gathered_of(X, score(samples, self.fields_of(X, W)))
            # Wait: otherwise a device would receive several blocks ahead and hold them all.
            total = jax.block_until_ready(part if total is None else total + part)
            del X
        return total


def may_stop() -> None:
    """Check for interrupts between two blocks; in a thread, raise an exception that its future passes on."""
    interrupts.check()
    if interrupts.waiting():
        raise KeyboardInterrupt


def joined(parts: list[Array]) -> Array:
    """Join arrays of blocks (S, n, ...) into one array of all samples (S, N, ...)."""
    return parts[0] if len(parts) == 1 else array_namespace(parts[0]).concatenate(parts, axis=1)


# The axes of samples and tokens are merged: einsum with an axis for each is up to nine times slower on a CPU.
@partial(compiled_for_jax, static_argnums=2)
def fields(X: Array, W: Array, groups: tuple[int, ...] | None = None) -> Array:
    """Return X W / sqrt(D), (S, n, P, M/H), for tokens X (S, n, M, D) and weights W (S, P, D).

    ``groups`` (P,) are the parts of the data, 0 to H - 1, on which the rows act; None: there is one part.
    """
    seeds, n, tokens, dim = X.shape
    X = X.reshape(seeds, -1, dim)
    if isinstance(X, np.ndarray):
        Z = (W @ X.swapaxes(1, 2)).reshape(seeds, -1, n, tokens).swapaxes(1, 2)
    else:  # in this order the rounding of JAX's products does not depend on the number of seeds
        Z = jnp.einsum("skd,spd->skp", X, W).reshape(seeds, n, tokens, -1).swapaxes(2, 3)
    Z = Z / np.sqrt(np.float32(dim))
    if groups is None:
        return Z
    parts = Z.reshape(seeds, n, len(groups), max(groups) + 1, -1)
    return parts[:, :, np.arange(len(groups)), np.array(groups)]


@partial(compiled_for_jax, static_argnums=2)
def gathered(X: Array, g: Array, groups: tuple[int, ...] | None = None) -> Array:
    """Return X^T g / sqrt(D), (S, P, D), for tokens X (S, n, M, D) and scores g (S, n, P, M/H); see :func:`fields`."""
    seeds, n, tokens, dim = X.shape
    if groups is not None:
        own = np.eye(max(groups) + 1, dtype=np.float32)[np.array(groups)]
        g = (g[:, :, :, None] * own[:, :, None]).reshape(seeds, n, len(groups), tokens)
    X = X.reshape(seeds, -1, dim)
    if isinstance(X, np.ndarray):
        W = g.swapaxes(1, 2).reshape(seeds, -1, n * tokens) @ X
    else:
        W = jnp.einsum("skp,skd->spd", g.swapaxes(2, 3).reshape(seeds, n * tokens, -1), X)
    return W / np.sqrt(np.float32(dim))


class KeptTokens(Tokens):
    """Tokens kept in memory, as one block."""

    def __init__(self, X: Any, groups: tuple[int, ...] | None = None) -> None:
        self.X, self.shape, self.groups = X, X.shape, groups

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        yield slice(0, self.shape[1]), self.X

    def of_seed(self, k: int) -> KeptTokens:
        return self if self.shape[0] == 1 else KeptTokens(self.X[k : k + 1], self.groups)


class DrawnTokens(Tokens):
    """Tokens that are drawn again in every pass.

    Parameters
    ----------
    keys : array of uint32 (S, 2)
        The key of every data set.
    shape : tuple (S, N, M, D)
    groups : tuple of int, optional
        See :class:`Tokens`.
    tiles : int, optional
        Number of tiles per block; the tokens do not depend on it. The default fills 1/8 GiB, on a large accelerator
        8 GiB.
    """

    def __init__(
        self,
        keys: np.ndarray,
        shape: tuple[int, int, int, int],
        groups: tuple[int, ...] | None = None,
        tiles: int | None = None,
    ) -> None:
        self.keys, self.shape, self.groups = keys, shape, groups
        self.tiles = min(tiles or _fitting_tiles(shape), -(-shape[1] // TILE))

    @property
    def block_bytes(self) -> int:
        """Memory of one block in bytes."""
        seeds, _, tokens, dim = self.shape
        return 4 * seeds * self.tiles * TILE * tokens * dim

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        _, samples, tokens, dim = self.shape
        for first in range(0, samples, self.tiles * TILE):
            last = min(first + self.tiles * TILE, samples)
            yield slice(first, last), _draw(self.keys, first // TILE, (last - first, tokens, dim))

    def of_seed(self, k: int) -> DrawnTokens:
        return DrawnTokens(self.keys[k : k + 1], (1, *self.shape[1:]), self.groups, self.tiles)

    def kept(self) -> KeptTokens:
        """Draw the tokens once and keep them in memory."""
        return KeptTokens(_draw(self.keys, 0, self.shape[1:]), self.groups)


def _fitting_tiles(shape: tuple[int, int, int, int]) -> int:
    seeds, _, tokens, dim = shape
    budget: float = _BLOCK_BYTES[0]
    if not on_cpu():
        budget = min(_BLOCK_BYTES[1], _BLOCK_SHARE * (physical_memory() or np.inf))
    tiles = max(int(budget // (4 * seeds * TILE * tokens * dim)), 1)
    return tiles if tiles < _TILES_TOGETHER else tiles - tiles % _TILES_TOGETHER


def _draw(keys: np.ndarray, first_tile: int, shape: tuple[int, int, int]) -> Array:
    """Draw tokens (S, n, M, D), ``shape`` = (n, M, D), from tile number ``first_tile`` on.

    Only the program that draws a tile takes long to compile; it serves every number of samples.
    """
    X = np.empty((len(keys), *shape), np.float32) if on_cpu() else jnp.zeros((len(keys), *shape), jnp.float32)
    together = max(_SHORT_BYTES // (4 * len(keys) * TILE * shape[1] * shape[2]), 1)
    for first in range(0, shape[0], TILE):
        if first % (together * TILE) == 0:
            jax.block_until_ready(X)  # otherwise all tiles would be queued before an interrupt is noticed
            may_stop()
        tile = normals(keys, np.uint32(first_tile + first // TILE), (TILE, *shape[1:]))
        rest = min(shape[0] - first, TILE)
        if isinstance(X, np.ndarray):
            X[:, first : first + rest] = np.asarray(tile)[:, :rest]
        else:
            X = _with_tile(X, tile if rest == TILE else tile[:, :rest], np.int32(first))
    return X


@partial(jax.jit, donate_argnums=0)
def _with_tile(X: jax.Array, tile: jax.Array, first: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(X, tile, first, axis=1)


@partial(jax.jit, static_argnums=2)
def normals(keys: jax.Array, number: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw standard normals (S, *shape) from keys (S, 2), equal to ``jax.random.normal(fold_in(key, number), shape)``.

    On a CPU, JAX's own loops that draw bits take two seconds to compile; these lines take a quarter of a second.
    """
    none, count = jnp.uint32(0), jax.lax.iota(jnp.uint32, int(np.prod(shape)))
    folded = _threefry(keys[:, :1], keys[:, 1:], none, jnp.asarray(number, jnp.uint32))
    first, second = _threefry(*folded, none, count)
    # The first 23 bits are the mantissa of a float32 in [1, 2), which is mapped to (-1, 1).
    ones = jax.lax.bitcast_convert_type(((first ^ second) >> 9) | np.float32(1).view(np.uint32), jnp.float32)
    least = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jnp.maximum(least, (ones - 1) * (1 - least) + least)
    return (np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)).reshape(-1, *shape)


def _threefry(key: jax.Array, other_key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two words: the Threefry-2x32 hash (20 rounds) of x, y under a key of two words. Salmon et al., SC'11."""
    keys = key, other_key, key ^ other_key ^ np.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for k in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[k % 2]:
            x = x + y
            y = ((y << turn) | (y >> (32 - turn))) ^ x
        x, y = x + keys[(k + 1) % 3], y + keys[(k + 2) % 3] + np.uint32(k + 1)
    return x, y
