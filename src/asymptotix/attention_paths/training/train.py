"""Training of all weights of a network, attention included: Tiberi et al., arXiv:2405.15926, appendix H.1."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.dataset.provenance import provenance
from ...core.progress import Progress, as_progress
from ...core.result import ConvergenceWarning
from ...numerics import checks, interrupts
from ...numerics.memory import refuse_beyond_memory
from ...numerics.precision import refuse_after_fork, single_precision
from .. import streams
from ..network.path_network import AttentionPaths
from .adam_steps import (
    PRECISIONS,
    AdamRates,
    Evaluation,
    TrainRule,
    advanced,
    require_optax,
    state_at_start,
)
from .batch_source import BatchSource, Drawing, batch_source, checked_pair, fingerprint
from .train_checkpoint import Progressed, TrainCheckpoint
from .trainable import drawn_start
from .trained_paths import TrainedPaths, as_history

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class TrainingInterrupted(KeyboardInterrupt):
    """Raised when a second signal stops training; ``result`` is the network trained until then."""

    def __init__(self, result: TrainedPaths) -> None:
        super().__init__("interrupted twice; what was found is this exception's result")
        self.result = result


@dataclass(frozen=True)
class TrainSettings:
    """Options of :func:`train`, checked, with the sizes that follow from the data."""

    heads: tuple[int, ...]
    readout: int | str
    tokens: int
    features: int
    width: int
    key_size: int
    steps: int
    batch: int
    learning_rate: float
    weight_decay: float
    validate_every: int
    seed: int
    precision: str


def train(
    network: AttentionPaths,
    data: Drawing | tuple[ArrayLike, ArrayLike],
    *,
    validation: tuple[ArrayLike, ArrayLike] | None = None,
    width: int = 512,
    key_size: int = 128,
    steps: int | None = None,
    batch: int = 128,
    learning_rate: float = 3e-4,
    weight_decay: float = 0.0,
    validate_every: int = 1000,
    seed: int = 0,
    precision: str = "default",
    checkpoint: str | os.PathLike | None = None,
    progress: Progress | bool | None = None,
) -> TrainedPaths:
    """Train all weights of a network, including queries and keys, with Adam on the mean of (f - y)^2.

    As in the published training, weights are w = W/sqrt(fan-in), start uniform on (-1, 1)/sqrt(fan-in) and have no
    biases. In another scaling, the same learning rate gives steps of another size. If validation data are given, the
    weights of the step with the best validation accuracy are kept, otherwise those of the last step.

    Parameters
    ----------
    network : AttentionPaths
        Architecture: layers, heads and readout. It must have no ``query_key``, because attention is learned.
    data : object with ``draw(key, count)``, or pair of arrays
        ``draw`` returns a fresh batch, inputs (count, T, N0) and labels (count,) of +1 and -1. It must be written in
        JAX, because it is compiled with the steps. From arrays (P, T, N0) and (P,), the examples of a batch are drawn
        uniformly and independently.
    validation : pair of arrays, optional
        Inputs (P', T, N0) and labels (P',) of +1 and -1.
    width, key_size : int
        Width N of the layers, and length G of queries and keys.
    steps : int, optional
        Total number of steps; by default ten epochs, an epoch being ``data.epoch`` or the number of examples.
    batch : int
        Number of examples per step.
    learning_rate, weight_decay : float
        Options of Adam; the gradient includes weight_decay w, as in the published code (5e-5 there, not in the text).
    validate_every : int
        Number of steps between two rows of the history; the last step has a row too.
    seed : int
        Seed of the initial weights and of the batches.
    precision : "default" or "highest"
        Precision of products: the device's own (TF32 on recent GPUs), or full float32.
    checkpoint : path, optional
        File that stores the training about every half a minute, at an interrupt and at the end. A call that finds this
        file resumes from it, also up to a larger ``steps``, with bitwise equal results on the same machine (GPUs may
        choose other kernels). A damaged checkpoint is renamed with a warning, and training starts anew. A checkpoint of
        another training, or any other file, is refused and left unchanged.
    progress : Progress, bool or None
        See :class:`asymptotix.core.progress.Progress`; it shows loss, accuracy and the remaining time.

    Returns
    -------
    TrainedPaths
        After an interrupt (Ctrl-C, SIGTERM), the network trained until then; a second interrupt raises
        TrainingInterrupted with it.

    Warns
    -----
    ConvergenceWarning
        If the loss became infinite or nan: the best validated weights are returned, or without any, a
        FloatingPointError is raised. Also if the checkpoint could not be written.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> rng = np.random.default_rng(0)
    >>> inputs, labels = rng.standard_normal((24, 5, 6)), np.where(np.arange(24) % 2, 1.0, -1.0)
    >>> small = {"width": 8, "key_size": 3, "batch": 8, "steps": 20, "progress": False}
    >>> trained = asx.train(asx.AttentionPaths(layers=2, heads=2), (inputs, labels), **small)
    >>> trained.predict(inputs).shape
    (24,)
    """
    refuse_after_fork()
    require_optax()
    if not isinstance(network, AttentionPaths):
        raise TypeError(f"network must be an AttentionPaths, got {checks.named(network)}")
    if network.query_key is not None:
        raise ValueError("network must have no query_key, which is learned: give layers, heads and readout")
    with interrupts.deferred(), single_precision():
        source = batch_source(data, checks.integer("batch", batch, 1))
        pair = None if validation is None else checked_pair("validation", validation)
        settings = _settings(
            network,
            source,
            steps=_steps(steps, data, source.batch),
            width=checks.integer("width", width, 1),
            key_size=checks.integer("key_size", key_size, 1),
            learning_rate=float(checks.positive("learning_rate", learning_rate)),
            weight_decay=float(checks.non_negative("weight_decay", weight_decay)),
            validate_every=checks.integer("validate_every", validate_every, 1),
            seed=checks.integer("seed", seed, 0),
            precision=checks.one_of("precision", precision, PRECISIONS),
        )
        training = _Training(settings, source, pair, checkpoint)
        interrupted = training.run(progress)
        result = training.result()
        if interrupted and interrupts.insisting():
            raise TrainingInterrupted(result)
    for text in training.complaints():
        warnings.warn(text, ConvergenceWarning, stacklevel=2)
    return result


def _settings(network: AttentionPaths, source: BatchSource, **options: Any) -> TrainSettings:
    settings = TrainSettings(
        heads=network.heads,
        readout=network.readout,
        tokens=source.tokens,
        features=source.features,
        batch=source.batch,
        **options,
    )
    T, readout = settings.tokens, settings.readout
    if not isinstance(readout, str) and not -T <= readout < T:
        raise ValueError(f"readout must be a token index below {T}, the number of tokens, got {readout}")
    H, N, G, N0 = sum(settings.heads), settings.width, settings.key_size, settings.features
    weights = H * (N**2 + 2 * G * N0) + N * N0
    # Weights, gradient, two moments, best and a copy; per example: scores, queries, keys and their gradients.
    example = T * (H * (4 * T + 4 * max(N0, 2 * G)) + 2 * network.paths + 2 * N0)
    needed = 4 * (6 * weights + settings.batch * example + network.paths * N)
    refuse_beyond_memory(needed, f"training with batches of {settings.batch}", "a smaller batch or width")
    return settings


def _steps(steps: int | None, data: Any, batch: int) -> int:
    if steps is not None:
        return checks.integer("steps", steps, 1, 2**31 - 1)
    epoch = getattr(data, "epoch", None) if isinstance(data, Drawing) else len(data[1])
    if epoch is None:
        raise ValueError("steps must be given: data has no epoch, the number of its examples; got None")
    return max(1, 10 * checks.integer("epoch", epoch, 1) // batch)


class _Training:
    """One training: its settings, its current state and its history."""

    def __init__(
        self,
        settings: TrainSettings,
        source: BatchSource,
        validation: tuple[np.ndarray, np.ndarray] | None,
        checkpoint: str | os.PathLike | None,
    ) -> None:
        self.settings, self.source = settings, source
        if validation is not None and validation[0].shape[1:] != (settings.tokens, settings.features):
            raise ValueError(
                f"validation inputs must have shape (examples, {settings.tokens}, {settings.features}), as data have, "
                f"got {validation[0].shape}"
            )
        self.evaluation = None if validation is None else Evaluation(*validation)
        self.rule = TrainRule(source.draw, settings.readout, settings.precision)
        self.rates = AdamRates(np.float32(settings.learning_rate), np.float32(settings.weight_decay))
        entropy = np.random.SeedSequence(streams.training_batches(settings.seed)).generate_state(1)[0]
        self.key = jax.random.key(int(entropy), impl="threefry2x32")
        sizes = {"features": settings.features, "width": settings.width, "key_size": settings.key_size}
        names = ["step", "loss", "train_accuracy"]
        names += [] if self.evaluation is None else ["validation_accuracy", "validation_error"]
        start = state_at_start(drawn_start(settings.seed, settings.heads, **sizes))
        self.now = Progressed(start, {name: [] for name in names})
        self.file = None
        if checkpoint is not None:
            self.file = TrainCheckpoint(checkpoint, self._identity(validation), source.probe(self.key))
            self.now = self.file.taken_up(start) or self.now
            if self.step > settings.steps:
                raise ValueError(
                    f"steps must be at least {self.step}, which the checkpoint {self.file.path} has done, got "
                    f"{settings.steps}"
                )
        self.failed = False
        self._earlier_seconds, self._began = self.now.seconds, time.perf_counter()

    def run(self, progress: Progress | bool | None) -> bool:
        """Do all remaining steps; return whether an interrupt stopped them."""
        left, interrupted = self.settings.steps - self.step, False
        try:
            with as_progress(progress, left, "training") as bar:
                self._advance(bar)
        except KeyboardInterrupt:
            interrupted = True
        self.now.seconds = self._earlier_seconds + time.perf_counter() - self._began
        if self.file is not None and left and not self.failed:
            self.file.write(self.now)
        return interrupted

    @property
    def step(self) -> int:
        return int(self.now.state.step)

    def result(self) -> TrainedPaths:
        """Return the trained network: the best validated weights if there are any, otherwise the last ones."""
        best = self.now.best
        if best is None and self.failed:
            raise FloatingPointError(
                f"learning_rate must be smaller: the loss grew beyond all numbers before step {self.step}, with "
                f"{self.settings.learning_rate:g}"
            )
        kept = best if best is not None else self.now.state.trained
        settings = {
            **asdict(self.settings),
            "heads": list(self.settings.heads),
            "steps_done": self.step,
            "kept_step": self.now.best_step if best is not None else self.step,
        }
        return TrainedPaths(
            trained=jax.tree.map(np.asarray, kept),
            readout=self.settings.readout,
            history=as_history({name: np.array(column) for name, column in self.now.rows.items()}),
            settings=settings,
            provenance=provenance(self.now.seconds),
        )

    def complaints(self) -> list[str]:
        """Return the texts of warnings for the user: a diverged loss, a checkpoint that could not be written."""
        found = []
        if self.failed:
            found.append(
                f"the loss grew beyond all numbers before step {self.step}; returned are the weights of step "
                f"{self.now.best_step}. Try a smaller learning_rate than {self.settings.learning_rate:g}"
            )
        if self.file is not None and self.file.trouble:
            found.append(f"the checkpoint could not be written: {self.file.trouble}")
        return found

    def _advance(self, bar: Progress) -> None:
        count = 1
        while (step := self.step) < self.settings.steps:
            every = self.settings.validate_every
            stop = min(self.settings.steps, (step // every + 1) * every)
            count = min(count, stop - step)
            before, began = self.now.state, time.perf_counter()
            state = advanced(before, self.source.constants, self.key, np.int32(count), self.rates, rule=self.rule)
            loss, correct = (float(x) for x in (state.loss, state.correct))
            if not np.isfinite(loss):
                self.failed = True
                return
            self.now.state = state
            words = [
                f"loss {(loss - float(before.loss)) / count:.4f}",
                f"accuracy {(correct - float(before.correct)) / count:.1%}",
            ]
            count = interrupts.steps_of_next_call(count, time.perf_counter() - began, every)
            if step + (done := self.step - step) == stop:
                self._record()
            if self.now.best is not None:
                words.append(f"best validation {self.now.best_accuracy:.1%} at step {self.now.best_step}")
            if self.file is not None:
                self.file.offer(self.now)
            bar.advance(done, ", ".join(words))

    def _record(self) -> None:
        """Add a row to the history, with averages since the last row; keep the weights if they validate best so far."""
        now, state, rows = self.now, self.now.state, self.now.rows
        since = self.step - (int(rows["step"][-1]) if rows["step"] else 0)
        row = {"step": self.step, "loss": float(state.loss) / since, "train_accuracy": float(state.correct) / since}
        if self.evaluation is not None:
            accuracy, error = self.evaluation.accuracy_and_error(state.trained, self.rule)
            row |= {"validation_accuracy": accuracy, "validation_error": error}
            if accuracy > now.best_accuracy and np.isfinite(error):
                now = replace(now, best=state.trained, best_accuracy=accuracy, best_step=self.step)
        zero = jnp.zeros((), jnp.float32)
        # A single assignment, because a second signal may come at any moment.
        self.now = replace(
            now,
            state=state._replace(loss=zero, correct=zero),
            rows={name: [*column, row[name]] for name, column in rows.items()},
        )

    def _identity(self, validation: tuple[np.ndarray, np.ndarray] | None) -> dict[str, object]:
        """Return name -> value of what a checkpoint must share to be resumed: settings but ``steps``, validation."""
        own = {name: value for name, value in asdict(self.settings).items() if name != "steps"}
        own["validation"] = None if validation is None else fingerprint(validation)
        return {**own, "heads": list(self.settings.heads)}
