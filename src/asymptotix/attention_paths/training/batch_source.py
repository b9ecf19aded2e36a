"""Sources of batches: an object that draws them, or arrays from which they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import checks
from ...numerics.arrays import Array
from ..network.given_arrays import checked_tokens, require_signs

#: Function (constants, key) -> batch, a pair (inputs, labels); it is compiled. The constants are an argument, because
#: a data set inside a program would be copied into the program and processed by the compiler.
Draw = Callable[[Any, Any], tuple[jax.Array, jax.Array]]


@runtime_checkable
class Drawing(Protocol):
    """Data to train on: ``draw(key, count)`` returns a fresh batch and is written in JAX.

    ``key`` is a key of ``jax.random``, ``count`` the number of examples. The batch has inputs (count, T, N0) and labels
    (count,) of +1 and -1.
    """

    def draw(self, key: jax.Array, count: int) -> tuple[Array, Array]: ...


@dataclass(frozen=True, eq=False)
class BatchSource:
    """Source of batches of one size.

    Attributes
    ----------
    draw, constants
        A batch is ``draw(constants, key)``: inputs (batch, tokens, features) and labels (batch,), float32.
    batch, tokens, features : int
        Numbers of examples per batch, of tokens per example and of features per token.
    """

    draw: Draw
    constants: object
    batch: int
    tokens: int
    features: int

    def drawn(self, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return one batch, (inputs, labels), as NumPy arrays."""
        x, labels = _one_batch(self.constants, key, draw=self.draw)
        return np.asarray(x), np.asarray(labels)

    def probe(self, key: jax.Array) -> np.ndarray:
        """Return an array (2, batch) that identifies the data up to rounding: weighted sums of inputs, and labels."""
        x, labels = self.drawn(key)
        flat = x.reshape(self.batch, -1).astype(float)
        return np.stack([flat @ np.cos(np.arange(flat.shape[1])), labels])


def batch_source(data: object, batch: int) -> BatchSource:
    """Return the source of batches for the ``data`` of :func:`asymptotix.train`, checked by drawing one batch."""
    drawing = data if isinstance(data, Drawing) else _Examples(*checked_pair("data", data))
    key = jax.random.key(0)
    try:
        if jax.tree_util.all_leaves([drawing]):
            draw, constants = _taken_apart(lambda key: _checked_batch(drawing.draw(key, batch), batch), key)
        else:
            draw, constants = _OfTree(batch), jax.tree.map(jnp.asarray, drawing)
        shape = jax.eval_shape(draw, constants, key)[0].shape
    except jax.errors.JAXTypeError as error:
        error.add_note("data.draw must be written in JAX: it is compiled together with the training steps")
        raise
    source = BatchSource(draw, constants, *shape)
    x, labels = source.drawn(key)
    if not np.isfinite(x).all():
        raise ValueError(f"data.draw must return finite inputs, got {np.count_nonzero(~np.isfinite(x))} that are not")
    require_signs("labels of data.draw", labels)
    return source


def checked_pair(name: str, given: object) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (P, T, N0) and labels (P,) of +1 and -1 as float32, or raise an error that names the fault."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        accepted = "a pair (inputs, labels) of arrays" + (", or have draw(key, count)" if name == "data" else "")
        raise TypeError(f"{name} must be {accepted}, got {type(given).__name__}")
    inputs = checked_tokens(f"inputs of {name}", given[0])
    labels = checks.array_of_shape(f"labels of {name}", given[1], (len(inputs),))
    require_signs(f"labels of {name}", labels)
    with np.errstate(over="ignore"):
        inputs = inputs.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise ValueError(f"inputs of {name} must fit single precision, got entries beyond 3e38")
    return inputs, labels.astype(np.float32)


def fingerprint(pair: tuple[np.ndarray, np.ndarray]) -> str:
    """Return a checksum (SHA-256, hexadecimal) of the pair (inputs, labels) and their shapes."""
    shapes = repr([array.shape for array in pair]).encode()
    return hashlib.sha256(shapes + b"".join(np.ascontiguousarray(array).tobytes() for array in pair)).hexdigest()


@partial(jax.jit, static_argnames="draw")
def _one_batch(constants: object, key: jax.Array, *, draw: Draw) -> tuple[jax.Array, jax.Array]:
    return draw(constants, key)


class _Examples(NamedTuple):
    """Examples, inputs (P, T, N0) and labels (P,), from which batches are drawn uniformly with replacement."""

    inputs: Array
    labels: Array

    def draw(self, key: jax.Array, count: int) -> tuple[Array, Array]:
        rows = jax.random.randint(key, (count,), 0, len(self.inputs), dtype=jnp.int32)
        return self.inputs[rows], self.labels[rows]


@dataclass(frozen=True)
class _OfTree:
    """Function (constants, key) -> batch for data that are a JAX pytree; ``constants`` is the data object itself.

    Instances of equal ``batch`` share a compiled program.
    """

    batch: int

    def __call__(self, constants: Drawing, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _checked_batch(constants.draw(key, self.batch), self.batch)


def _taken_apart(
    drawn: Callable[[jax.Array], tuple[jax.Array, jax.Array]], key: jax.Array
) -> tuple[Draw, list[jax.Array]]:
    """Return (draw, constants), with ``draw(constants, key) == drawn(key)`` and the arrays that ``drawn`` holds."""
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    closed = jax.make_jaxpr(drawn)(key)
    program = closed.jaxpr  # without the arrays, which a compiled program would keep in memory

    def draw(constants: list[jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, labels = jaxpr_as_fun(ClosedJaxpr(program, constants))(key)
        return x, labels

    return draw, [jnp.asarray(array) for array in closed.consts]


def _checked_batch(drawn: object, batch: int) -> tuple[jax.Array, jax.Array]:
    """Return the drawn pair (inputs, labels) as float32, or raise an error that says what is wrong with its shape."""
    name = f"data.draw(key, {batch})"
    if not isinstance(drawn, tuple | list) or len(drawn) != 2:
        raise TypeError(f"{name} must return a pair (inputs, labels), got {type(drawn).__name__}")
    x, labels = (jnp.asarray(array).astype(jnp.float32) for array in drawn)
    if x.ndim != 3 or x.size == 0 or len(x) != batch or labels.shape != (batch,):
        wanted = f"inputs ({batch}, tokens, features) and labels ({batch},)"
        raise ValueError(f"{name} must return {wanted}, got shapes {x.shape} and {labels.shape}")
    return x, labels
