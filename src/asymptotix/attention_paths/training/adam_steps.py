"""Steps of Adam on fresh batches, many in one compiled call; and the same network on given data.

One program does any number of steps, and a batch depends on the seed and the number of its step alone: how the steps
are shared among calls, and where a training was interrupted, changes no bit of what is found.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .batch_source import Draw
from .path_outputs import outputs
from .trainable import Trainable

#: Precision of products: that of the device (on recent GPUs a mantissa of 10 bits, in the sums 23), or all of float32.
PRECISIONS = ("default", "highest")
#: Examples that are evaluated together.
_EVALUATED_AT_ONCE = 256


class TrainRule(NamedTuple):
    """What decides which program is compiled."""

    draw: Draw
    readout: int | str
    precision: str


class AdamRates(NamedTuple):
    """Step and weight decay; they are arguments, so that another rate needs no other program."""

    learning_rate: Any
    weight_decay: Any


class TrainState(NamedTuple):
    """Where a training is.

    Attributes
    ----------
    trained : Trainable
    moments : Any
        State of the optimizer.
    step : int32
        Steps that are done.
    loss, correct : float32
        Sums over the batches since the last row of the history: mean loss, and share of right signs.
    """

    trained: Trainable
    moments: Any
    step: Any
    loss: Any
    correct: Any


def state_at_start(trained: Trainable) -> TrainState:
    """Before the first step."""
    placed = jax.tree.map(jnp.asarray, trained)
    zero = jnp.zeros((), jnp.float32)
    return TrainState(placed, _optimizer(AdamRates(0.0, 0.0)).init(placed), jnp.zeros((), jnp.int32), zero, zero)


@partial(jax.jit, static_argnames="rule")
def advanced(
    state: TrainState, constants: Any, key: Any, count: Any, rates: AdamRates, *, rule: TrainRule
) -> TrainState:
    """The state ``count`` steps later."""
    optimizer = _optimizer(rates)

    def loss_of(trained: Trainable, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        f = outputs(trained, x, rule.readout)
        return ((f - y) ** 2).mean(), f

    def one_step(_: Any, state: TrainState) -> TrainState:
        x, y = rule.draw(constants, jax.random.fold_in(key, state.step))
        (loss, f), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.trained, x, y)
        change, moments = optimizer.update(gradient, state.moments, state.trained)
        trained = jax.tree.map(jnp.add, state.trained, change)
        correct = state.correct + (jnp.sign(f) == y).mean()
        return TrainState(trained, moments, state.step + 1, state.loss + loss, correct)

    with _precision(rule.precision):
        return jax.lax.fori_loop(0, count, one_step, state)


class Evaluation:
    """Inputs and labels on the device, on which networks are evaluated in parts of one size."""

    def __init__(self, inputs: np.ndarray, labels: np.ndarray) -> None:
        self.count, size = len(labels), _EVALUATED_AT_ONCE
        short = -self.count % size
        # Labels of zero fill the last part up: no sign equals them, and their error is left out.
        x = np.concatenate([inputs, np.zeros((short, *inputs.shape[1:]), np.float32)])
        y = np.concatenate([labels, np.zeros(short, np.float32)])
        self.parts = jnp.asarray(x.reshape(-1, size, *inputs.shape[1:])), jnp.asarray(y.reshape(-1, size))

    def accuracy_and_error(self, trained: Trainable, rule: TrainRule) -> tuple[float, float]:
        """Share of right signs and mean of (f - y)^2."""
        right, error = _evaluated(trained, *self.parts, readout=rule.readout, precision=rule.precision)
        return float(right) / self.count, float(error) / self.count


@partial(jax.jit, static_argnames=("readout", "precision"))
def _evaluated(trained: Trainable, x: Any, y: Any, *, readout: int | str, precision: str) -> tuple[Any, Any]:
    def part(given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, y = given
        f = outputs(trained, x, readout)
        there = y != 0
        return (there & (jnp.sign(f) == y)).sum(), jnp.where(there, (f - y) ** 2, 0.0).sum()

    with _precision(precision):
        right, error = jax.lax.map(part, (x, y))
    return right.sum(), error.sum()


def _optimizer(rates: AdamRates) -> Any:
    optax = require_optax()
    # The decay enters the gradient, before Adam scales it: as in the published code, and unlike AdamW.
    return optax.chain(optax.add_decayed_weights(rates.weight_decay), optax.adam(rates.learning_rate))


def require_optax() -> Any:
    """The optimizers, or an error that says how to get them."""
    try:
        import optax
    except ImportError as error:
        raise ImportError("training needs optax: pip install 'asymptotix[data]', or pip install optax") from error
    return optax


def _precision(precision: str) -> AbstractContextManager[Any]:
    return nullcontext() if precision == "default" else jax.default_matmul_precision(precision)
