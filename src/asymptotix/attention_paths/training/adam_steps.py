"""Steps of Adam on fresh batches, many in one compiled call, and evaluation of the network on given data.

One program does any number of steps, and a batch depends only on the seed and the number of its step. So the result is
the same, bit by bit, however the steps are divided among calls and wherever a training was interrupted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .batch_source import Draw
from .path_outputs import outputs
from .trainable import Trainable

if TYPE_CHECKING:
    import optax

#: Precision of products: the device's default (recent GPUs: 10 bits of mantissa, 23 in the sums), or full float32.
PRECISIONS = ("default", "highest")
#: Number of examples that are evaluated together. Larger: more memory. Smaller: slower on a GPU.
_EVALUATED_AT_ONCE = 256


class TrainRule(NamedTuple):
    """Settings that decide which program is compiled: draw(constants, key) -> batch, readout, one of PRECISIONS."""

    draw: Draw
    readout: int | str
    precision: str


class AdamRates(NamedTuple):
    """Learning rate and weight decay; they are arguments of the program, so new values need no compilation."""

    learning_rate: float | np.float32 | jax.Array
    weight_decay: float | np.float32 | jax.Array


class TrainState(NamedTuple):
    """State of a training.

    Attributes
    ----------
    trained : Trainable
    moments : optax.OptState
        State of the optimizer.
    step : int32
        Number of steps done.
    loss, correct : float32
        Mean loss and share of right signs of each batch, summed over the batches since the last row of the history.
    """

    trained: Trainable
    moments: optax.OptState
    step: jax.Array
    loss: jax.Array
    correct: jax.Array


def state_at_start(trained: Trainable) -> TrainState:
    """Return the state before the first step, with moments and sums of zero."""
    placed = jax.tree.map(jnp.asarray, trained)
    zero = jnp.zeros((), jnp.float32)
    return TrainState(placed, _optimizer(AdamRates(0.0, 0.0)).init(placed), jnp.zeros((), jnp.int32), zero, zero)


@partial(jax.jit, static_argnames="rule")
def advanced(
    state: TrainState, constants: object, key: jax.Array, count: jax.Array, rates: AdamRates, *, rule: TrainRule
) -> TrainState:
    """Return the state after ``count`` more steps; the batch of step k is draw(constants, key with k folded in)."""
    optimizer = _optimizer(rates)

    def loss_of(trained: Trainable, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        f = outputs(trained, x, rule.readout)
        return ((f - y) ** 2).mean(), f

    def one_step(_: jax.Array, state: TrainState) -> TrainState:
        x, y = rule.draw(constants, jax.random.fold_in(key, state.step))
        (loss, f), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.trained, x, y)
        change, moments = optimizer.update(gradient, state.moments, state.trained)
        trained = jax.tree.map(jnp.add, state.trained, change)
        correct = state.correct + (jnp.sign(f) == y).mean()
        return TrainState(trained, moments, state.step + 1, state.loss + loss, correct)

    with _precision(rule.precision):
        return jax.lax.fori_loop(0, count, one_step, state)


class Evaluation:
    """Labelled examples, inputs (P, T, N0) and labels (P,), on the device, on which networks are evaluated."""

    def __init__(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        self.count, size = len(labels), _EVALUATED_AT_ONCE
        short = -self.count % size
        # Labels of zero pad the last part; _evaluated counts neither their signs nor their errors.
        x = np.concatenate([inputs, np.zeros((short, *inputs.shape[1:]), np.float32)])
        y = np.concatenate([labels, np.zeros(short, np.float32)])
        self.parts = jnp.asarray(x.reshape(-1, size, *inputs.shape[1:])), jnp.asarray(y.reshape(-1, size))

    def accuracy_and_error(self, trained: Trainable, rule: TrainRule) -> tuple[float, float]:
        """Return the share of outputs f with the sign of their label y, and the mean of (f - y)^2."""
        right, error = _evaluated(trained, *self.parts, readout=rule.readout, precision=rule.precision)
        return float(right) / self.count, float(error) / self.count


@partial(jax.jit, static_argnames=("readout", "precision"))
def _evaluated(
    trained: Trainable, x: jax.Array, y: jax.Array, *, readout: int | str, precision: str
) -> tuple[jax.Array, jax.Array]:
    def part(given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, y = given
        f = outputs(trained, x, readout)
        there = y != 0
        return (there & (jnp.sign(f) == y)).sum(), jnp.where(there, (f - y) ** 2, 0.0).sum()

    with _precision(precision):
        right, error = jax.lax.map(part, (x, y))
    return right.sum(), error.sum()


def _optimizer(rates: AdamRates) -> optax.GradientTransformation:
    optax = require_optax()
    # The decay is part of the gradient that Adam scales, as in the published code and unlike AdamW.
    return optax.chain(optax.add_decayed_weights(rates.weight_decay), optax.adam(rates.learning_rate))


def require_optax() -> ModuleType:
    """Return the optax module, or raise an error that says how to install it."""
    try:
        import optax
    except ImportError as error:
        raise ImportError("training needs optax: pip install 'asymptotix[data]', or pip install optax") from error
    return optax


def _precision(precision: str) -> AbstractContextManager[object]:
    return nullcontext() if precision == "default" else jax.default_matmul_precision(precision)
