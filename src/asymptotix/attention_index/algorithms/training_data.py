"""Tokens and labels of a finite-size experiment, drawn in blocks from counter-based keys.

Only differences of tokens enter a row softmax: x_a^T S x_b - x_a^T S x_T = x_a^T S (x_b - x_T). Tokens are therefore
kept in the form F = (x_1 - x_T, ..., x_{T-1} - x_T, x_T), called the frame, in which the products

    P_ck = F_c^T S F_k,    c = 1..T,  k = 1..K = T - 1,

determine the softmax. If differences do not suffice, F = x and K = T. The law of Gaussian tokens is invariant under
rotations, so that S_0 may be taken diagonal.

The data follow Boncoraglio et al., arXiv:2509.24914, eqs. (4), (5). A learner that is centred by the training set, eqs.
(1) and (19), subtracts a T x T matrix.

Equation ai-model of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import interrupts
from ...numerics.arrays import Array
from ...numerics.memory import physical_memory, refuse_beyond_memory
from ..model import AttentionIndex
from ..streams import TRAINING

if TYPE_CHECKING:
    #: Tokens (None if every pass draws them again), labels, and Gram matrices (None without a sequence output).
    Piece: TypeAlias = tuple[jax.Array | None, jax.Array, jax.Array | None]
    Summed = TypeVar("Summed")

#: Number of samples that share a random key. Chunks are whole numbers of blocks: draws do not depend on chunk size.
BLOCK = 256
#: Largest share of the memory for stored tokens; larger sets are drawn again in every pass.
_KEPT_SHARE = 0.2
#: Largest number of blocks drawn in one call. Larger: an interrupt waits longer.
_PIECE = 64


class Samples(NamedTuple):
    """A data set in chunks of ``size`` samples; samples of weight zero fill the last chunk.

    Attributes
    ----------
    key
        Random key of the tokens.
    tokens
        Tokens in the frame, (chunks, T, size, d); None if they are drawn again in every pass.
    labels
        y, (chunks, T, T, size).
    gram
        x x^T / d, (chunks, T, T, size), the metric of the error of a sequence output; None for labels.
    weights
        One for a sample and zero for filling, (chunks, size).
    centre
        The matrices C_ck with which P_ck is centred, P_ck - Tr(S C_ck): (T, K, d, d).
    """

    key: jax.Array
    tokens: Any
    labels: jax.Array
    gram: jax.Array | None
    weights: jax.Array
    centre: jax.Array

    @property
    def size(self) -> int:
        """Number of samples in a chunk."""
        return self.weights.shape[1]


def random_key(seed: int, dim: int, samples: int, stream: int) -> jax.Array:
    """Return the key of one stream; it depends on nothing but these four numbers."""
    key = jax.random.key(seed, impl="threefry2x32")
    for number in (dim, samples, stream):
        key = jax.random.fold_in(key, number)
    return key


def frame(tokens: int, differences: bool) -> np.ndarray:
    """Return the matrix (T, T) from tokens x to their frame F: x_c - x_T and x_T, or x without ``differences``."""
    matrix = np.eye(tokens, dtype=np.float32)
    if differences:
        matrix[:-1, -1] = -1
    return matrix


def _chunk_bytes() -> int:
    """Return the bytes of tokens per chunk: large enough for matrix products to run at full speed."""
    return 2**23 if jax.default_backend() == "cpu" else 2**27


def chunk_size(samples: int, tokens: int, dim: int, chunk: int | None) -> int:
    """Return the samples per chunk, a multiple of BLOCK: about ``chunk``, or for None as many as suit the device."""
    if chunk is None:
        chunk = max(_chunk_bytes() // (4 * tokens * dim), BLOCK)
    chunks = -(-samples // chunk)
    return -(-samples // (chunks * BLOCK)) * BLOCK


def draw_samples(
    model: AttentionIndex,
    dim: int,
    samples: int,
    seed: int,
    *,
    stream: int = TRAINING,
    chunk: int | None = None,
    stored: bool | None = None,
    differences: bool | None = None,
) -> Samples:
    """Draw the data of one seed.

    Parameters
    ----------
    model
        Defines tokens, labels and the learner's centring; labels are always centred by the trace.
    dim, samples
        Dimension d and number n of samples.
    seed, stream
        The draws depend on these two, ``dim`` and ``samples`` only.
    chunk
        Number of samples per chunk, rounded to whole blocks; the default suits the device.
    stored
        Whether tokens are stored, or drawn again in every pass; by default they are stored if they fit.
    differences
        Whether the frame consists of differences; by default it does for a softmax.
    """
    T, size = model.tokens, chunk_size(samples, model.tokens, dim, chunk)
    sequence = model.output == "sequence"
    refuse_beyond_memory(
        4 * samples * T * T * (1 + sequence), f"the labels of {samples} samples", "a smaller dim or alpha"
    )
    if stored is None:
        stored = 4 * samples * T * dim <= _KEPT_SHARE * (physical_memory() or 2**32)
    differences = model.activation != "linear" if differences is None else differences
    key = random_key(seed, dim, samples, stream)
    pieces = _pieces(model, key, dim, samples, stored=stored, differences=differences)
    tokens, labels, gram = _assembled(pieces, chunks=-(-samples // size), size=size)
    weights = (np.arange(len(labels) * size) < samples).astype(np.float32).reshape(-1, size)
    C = frame(T, differences)
    covariance = C @ C[: T - differences].T
    centre = covariance[:, :, None, None] * np.eye(dim, dtype=np.float32)
    found = Samples(key, tokens, labels, gram, jnp.asarray(weights), jnp.asarray(centre))
    if model.centring == "empirical":
        return found._replace(centre=_empirical_centre(found))
    return found


def _pieces(
    model: AttentionIndex, key: jax.Array, dim: int, samples: int, *, stored: bool, differences: bool
) -> list[Piece]:
    """Draw tokens, labels and Gram matrices in pieces, whose size does not depend on alpha: one program draws all."""
    size = BLOCK * int(np.clip(_chunk_bytes() // (4 * model.tokens * dim * BLOCK), 1, _PIECE))
    numbers = (
        np.asarray(model.target.eigenvalues(dim), np.float32),
        np.float32(model.noise),
        np.float32(model.teacher_beta),
    )
    kind = DrawingKind(model.tokens, size, model.activation, model.output == "sequence", stored, differences)
    pieces = []
    for index in range(-(-samples // size)):
        pieces.append(_piece(key, np.int32(index), *numbers, kind))
        pieces[-1][1].block_until_ready()  # otherwise all pieces are queued before an interrupt can act
        interrupts.check()
    return pieces


class DrawingKind(NamedTuple):
    """Settings on which the compiled program of the draws depends, for T tokens and ``size`` samples."""

    T: int
    size: int
    activation: str
    sequence: bool
    stored: bool
    differences: bool


@partial(jax.jit, static_argnames="kind")
def _piece(
    key: jax.Array, index: jax.Array, eigenvalues: jax.Array, noise: jax.Array, beta: jax.Array, kind: DrawingKind
) -> Piece:
    dim = len(eigenvalues)
    x, xi = _gaussians(key, index, kind.size, kind.T, dim)
    forms = _inner_products(x * eigenvalues, x) - np.eye(kind.T, dtype=np.float32)[..., None] * eigenvalues.sum()
    R = forms / jnp.sqrt(jnp.float32(dim)) + jnp.sqrt(noise) * xi
    gram = _inner_products(x, x) / dim if kind.sequence else None
    return (_in_frame(x, kind.differences) if kind.stored else None), activate(R, beta, kind.activation), gram


@partial(jax.jit, static_argnames=("chunks", "size"))
def _assembled(pieces: list[Piece], chunks: int, size: int) -> Piece:
    """Return the pieces joined and cut into ``chunks`` of ``size`` samples, the leading axis, padded with zeros."""

    def cut(*parts: jax.Array, axis: int) -> jax.Array:
        joined = jnp.concatenate(parts, axis)[(slice(None),) * axis + (slice(chunks * size),)]
        missing = chunks * size - joined.shape[axis]
        joined = jnp.pad(joined, [(0, missing if i == axis else 0) for i in range(joined.ndim)])
        return jnp.moveaxis(joined.reshape(*joined.shape[:axis], chunks, size, *joined.shape[axis + 1 :]), axis, 0)

    tokens, labels, gram = zip(*pieces, strict=True)
    return (
        None if tokens[0] is None else cut(*tokens, axis=1),
        cut(*labels, axis=2),
        None if gram[0] is None else cut(*gram, axis=2),
    )


def _gaussians(key: jax.Array, index: jax.Array, size: int, T: int, dim: int) -> tuple[jax.Array, jax.Array]:
    """Draw tokens (T, size, d) of chunk ``index``, and symmetric noise (T, T, size) of variance 1 / (2 - delta_ab)."""
    blocks = size // BLOCK

    def block(number: jax.Array) -> jax.Array:
        # one draw for tokens and noise, because compiling the generator takes long
        return jax.random.normal(jax.random.fold_in(key, number), (T, BLOCK, dim + T), jnp.float32)

    # A loop over blocks compiles faster and costs a CPU nothing; an accelerator is busy only with all blocks at once.
    at_once = None if jax.default_backend() == "cpu" else blocks
    both = jax.lax.map(block, index * blocks + jnp.arange(blocks), batch_size=at_once)
    both = jnp.moveaxis(both, 0, 1).reshape(T, size, dim + T)
    xi = jnp.moveaxis(both[..., dim:], 1, 2)
    upper = np.triu(np.ones((T, T), bool))[..., None]
    xi = jnp.where(upper, xi, xi.swapaxes(0, 1)) / np.sqrt(2 - np.eye(T, dtype=np.float32))[..., None]
    return both[..., :dim], xi


def _in_frame(x: jax.Array, differences: bool) -> jax.Array:
    return jnp.concatenate([x[:-1] - x[-1:], x[-1:]]) if differences else x


def activate(h: jax.Array, beta: jax.Array, activation: str) -> jax.Array:
    """Return the activation of a pre-activation (T, T, samples), row by row."""
    return h if activation == "linear" else jax.nn.softmax(beta * h, axis=1)


class Chunk(NamedTuple):
    """One chunk: tokens in the frame (T, size, d), labels and Gram matrices (T, T, size), weights (size,)."""

    tokens: jax.Array
    labels: jax.Array
    gram: jax.Array | None
    weights: jax.Array


def sum_over_chunks(samples: Samples, function: Callable[[Chunk], Summed]) -> Summed:
    """Return the sum of ``function(chunk)`` over a data set, with one chunk in memory at a time."""
    T, K, _, dim = samples.centre.shape
    indices = jnp.arange(len(samples.weights))

    def chunk_of(row: tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None, jax.Array]) -> Chunk:
        index, tokens, labels, gram, weights = row
        if tokens is None:
            tokens = _in_frame(_gaussians(samples.key, index, samples.size, T, dim)[0], K < T)
        return Chunk(tokens, labels, gram, weights)

    def add(total: Summed, row: tuple) -> tuple[Summed, None]:
        return jax.tree.map(jnp.add, total, function(chunk_of(row))), None

    rows = (indices, samples.tokens, samples.labels, samples.gram, samples.weights)
    first = jax.tree.map(lambda x: x[0], rows)
    shapes = jax.eval_shape(lambda row: function(chunk_of(row)), first)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zero, rows)[0]


# Sums over tokens are written out: XLA's contractions over them are twenty times slower on a CPU.


def products(F: jax.Array, S: Array, K: int) -> jax.Array:
    """Return P_ck = F_c^T S F_k of every sample, (T, K, samples), for tokens F (T, samples, d)."""
    return _inner_products(F, [jnp.matmul(vectors, S, precision="highest") for vectors in F[:K]])


def _inner_products(first: Iterable[jax.Array], second: Iterable[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.stack([(a * b).sum(-1) for b in second]) for a in first])


def gathered(G: jax.Array, F: jax.Array) -> jax.Array:
    """Return the sum of G_ck F_c F_k^T over c, k and samples, (d, d): the transpose of :func:`products`."""
    total = jnp.zeros((F.shape[-1],) * 2, F.dtype)
    for k in range(G.shape[1]):
        combined = sum(G[c, k][:, None] * F[c] for c in range(len(F)))
        total += jnp.matmul(combined.T, F[k], precision="highest")  # type: ignore[union-attr]
    return total


@jax.jit
def _empirical_centre(samples: Samples) -> jax.Array:
    """Return the means of F_c F_k^T over the data set, (T, K, d, d)."""
    K = samples.centre.shape[1]

    def outer_products(chunk: Chunk) -> jax.Array:
        F = chunk.tokens
        return jnp.einsum("cnd,kne->ckde", F, F[:K] * chunk.weights[:, None], precision="highest")

    return sum_over_chunks(samples, outer_products) / samples.weights.sum()
