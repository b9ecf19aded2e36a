"""Losses and target outputs as JAX functions of T x T matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..model import AttentionIndex


def teacher_output(model: AttentionIndex) -> Callable[[Any], Any]:
    """R -> y of a model: the target's attention matrix, or R itself for linear attention."""
    if model.activation == "linear":
        return lambda R: R
    return lambda R: jax.nn.softmax(model.teacher_beta * R, axis=-1)


def cross_entropy(beta: float) -> Callable[[Any, Any], Any]:
    """-sum_ab y_ab log softmax(beta h)_ab: convex in h, so the proximal map never jumps."""
    return lambda y, h: -jnp.sum(y * jax.nn.log_softmax(beta * h, axis=-1))
