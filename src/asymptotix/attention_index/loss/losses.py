"""Losses and target outputs as JAX functions of T x T matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..model import AttentionIndex


def teacher_output(model: AttentionIndex) -> Callable[[jax.Array], jax.Array]:
    """Return the JAX function R -> y, both (T, T): the target's row softmax of R, or R itself for linear attention."""
    return _identity if model.activation == "linear" else _softmax(model.teacher_beta)


# One function object per temperature: programs that were compiled for it are found by the object.


def _identity(R: jax.Array) -> jax.Array:
    return R


@functools.lru_cache(maxsize=64)
def _softmax(beta: float) -> Callable[[jax.Array], jax.Array]:
    return lambda R: jax.nn.softmax(beta * R, axis=-1)


@functools.lru_cache(maxsize=64)
def cross_entropy(beta: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return (y, h) -> -sum_ab y_ab log softmax(beta h)_ab: convex in h, so that the proximal map never jumps."""
    return lambda y, h: -jnp.sum(y * jax.nn.log_softmax(beta * h, axis=-1))


@functools.lru_cache(maxsize=64)
def in_unit(
    loss: Callable[[jax.Array, jax.Array], jax.Array], unit: float
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the function (y, h) -> loss(y, h)/unit, the same object for equal arguments."""
    return loss if unit == 1 else lambda y, h: loss(y, h) / unit
