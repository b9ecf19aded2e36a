"""Stochastic gradient descent on the weights of deep attention: a trained network on the data of the theory.

The experiment is from Troiani et al., arXiv:2502.00901, section 3.3 and Fig. 2 (bottom). The step printed there lacks
the weights that it starts from, and the factor learning rate of the weight decay; our step is that of the authors'
code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core.problem import Outcome, Problem
from ...core.progress import Progress
from ...core.runs import AlgorithmOnSamples, PointRuns
from ...core.status import Status, of_movement
from ...numerics import checks
from ...numerics.arrays import Array, OneKind
from ...numerics.interrupts import steps_of_next_call
from ...numerics.memory import refuse_beyond_memory
from .. import streams
from ..models import rank_one
from ..models.deep_attention import DeepAttention
from .data_sets import draw_weights
from .estimate_quality import fresh_fields, overlap_matrices
from .tokens import DrawnTokens, fields, gathered, normals

#: Largest size in bytes of the tokens of seeds that run together.
_BATCH_BYTES = 2**31
#: Largest number of epochs between two progress messages. Only a message waits for the device.
_EPOCHS_PER_MESSAGE = 10
#: An index counts as learned in ``first_passage`` if its cosine exceeds this.
_LEARNED = 0.5
#: Smallest number of epochs that can show convergence: the last tenth of a run must be at least one epoch.
_LEAST_EPOCHS = 10


@dataclass(frozen=True)
class SGD(AlgorithmOnSamples):
    """Mini-batch gradient descent on a network of the teacher's own architecture.

    With y the teacher's output and yhat the student's output, both on tokens x, the loss of a batch and the step are

        L(W) = (1/D) sum_mu |y_mu - yhat_mu(W)|_F^2,      W <- W - learning_rate (dL/dW + (weight_decay/D) W).

    Parameters
    ----------
    epochs : int
        Number of passes through the N = alpha D samples.
    learning_rate, weight_decay : float
    batch : int
        Number of samples per batch. Batches are used in a fixed order; the last one of an epoch may be smaller.
    reuse : int
        Number of consecutive steps on every batch.
    online : bool
        Draw new samples for every batch, so that no sample is in two batches. The number of batches per epoch is the
        same as without.
    start_scale : float
        The start is start_scale N(0, 1).
    records : int
        Largest number of points of the traces; they are geometrically spaced in the number of batches.
    tolerance : float
        A run of ten epochs or more has converged if no overlap changed by more than this over its last tenth.

    Notes
    -----
    The defaults are those of the published experiment on two layers (D = 500, alpha = 15). The result has ``overlap``
    as for message passing; ``cosine`` = |w_l.w*_l| / (|w_l| |w*_l|); ``test_error`` on fresh samples; ``train_error``,
    the error per sample over the last epoch, each batch before its first step; ``first_passage``, the number of batches
    until the cosine of an index first exceeds 1/2 (nan if it never does). It also has traces of overlap and cosine,
    ``loss_trace`` (the error per sample of a batch before its first step), and ``step_trace``, the number of gradient
    steps at every record. Seeds run together in single precision: a run with others differs from the same run alone by
    rounding, 1e-7 at first, which training may amplify.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2))
    >>> runs = asx.simulate(problem, asx.SGD(epochs=10), alpha=15, dim=50, seeds=2, progress=False)
    >>> runs.overlap.dims
    ('seed', 'index', 'index_other')
    """

    epochs: int = 1700
    learning_rate: float = 15.0
    weight_decay: float = 0.07
    batch: int = 200
    reuse: int = 3
    online: bool = False
    start_scale: float = 0.9
    records: int = 400
    tolerance: float = 1e-2

    needs_dim: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "reuse", "records"):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        for name in ("learning_rate", "start_scale"):
            object.__setattr__(self, name, float(checks.positive(name, getattr(self, name))))
        object.__setattr__(self, "weight_decay", float(checks.non_negative("weight_decay", self.weight_decay)))
        object.__setattr__(self, "tolerance", checks.share("tolerance", self.tolerance))
        if not isinstance(self.online, bool):
            raise TypeError(f"online must be True or False, got {self.online!r}")

    def check(self, problem: Problem) -> None:
        """Refuse models other than tied single-head attention of rank one, and side information."""
        model = _model_of(problem)
        plain = model.tied and model.heads == 1 and model.output == "attention" and not callable(model.activation)
        if not plain or set(model.ranks) != {1}:
            raise NotImplementedError(
                f"SGD trains tied single-head attention of rank 1 with output='attention', got {model}"
            )
        side = getattr(problem, "side_information", 0.0)
        if side > 0:
            raise ValueError(f"SGD makes no use of side information, got side_information={side}")

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        # Files of version 0.1, which can be resumed, have a published_cosine too: it lacks the norm of the teacher.
        index = dict.fromkeys(("cosine", "published_cosine", "first_passage"), ("index",))
        traces = dict.fromkeys(("cosine_trace", "published_cosine_trace"), ("iteration", "index"))
        scalars = dict.fromkeys(("step_trace", "loss_trace"), ("iteration",))
        return {**problem.dimensions(), **index, **traces, **scalars}

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Refuse sizes that do not fit into memory: data, the record of every batch, weights and their gradients."""
        model = _model_of(problem)
        P, batches = model.layers, self.epochs * -(-runs.samples // min(self.batch, runs.samples))
        needed = 2 * self._data_bytes(model, runs) + 8 * batches * (4 * P * P + 4 * P) + 40 * P * runs.dim
        refuse_beyond_memory(needed, f"one run ({runs.label}, dim={runs.dim})", "a smaller dim or fewer epochs")

    def _data_bytes(self, model: DeepAttention, runs: PointRuns) -> int:
        kept = min(self.batch, runs.samples) if self.online else runs.samples + min(self.batch, runs.samples)
        return 4 * model.tokens * runs.dim * kept

    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Run the seeds of a point, together as far as memory allows; yield (position of the seed, outcome)."""
        model = _model_of(problem)
        for first, chosen in runs.batches(max(int(_BATCH_BYTES // self._data_bytes(model, runs)), 1)):
            batch = _SgdBatch(self, model, runs.samples, runs.dim, chosen)
            for k, outcome in enumerate(batch.run(progress, runs.label)):
                yield first + k, outcome


def _model_of(problem: Problem) -> DeepAttention:
    model = getattr(problem, "model", None)
    if not isinstance(model, DeepAttention):
        raise TypeError(f"SGD runs on BayesOptimal(DeepAttention(...)), got {type(problem).__name__}")
    return model


class Rule(NamedTuple):
    """Options that decide which program is compiled: ``size`` samples per full batch, ``batches`` per epoch."""

    skip: float
    activation: str
    reuse: int
    online: bool
    size: int
    batches: int
    tokens: int


class Batches(NamedTuple):
    """Tokens X (S, B, n, M, D) of B batches of n samples; None if every batch is drawn anew from the keys (S, 2).

    A last batch that is not full is padded with zero tokens, which have no error and no gradient. ``counts`` (B,) are
    the true sizes.
    """

    X: Any
    keys: Array
    counts: np.ndarray


class BatchRecord(NamedTuple):
    """W W*^T (..., P, P) and |w_l|^2 (..., P) after every batch, and its summed squared error before its steps."""

    cross: Any
    size: Any
    error: Any


class _SgdBatch:
    """Runs of several seeds at one point."""

    def __init__(self, options: SGD, model: DeepAttention, samples: int, dim: int, seeds: Sequence[int]) -> None:
        self.options, self.model, self.dim = options, model, dim
        size = min(options.batch, samples)
        batches = -(-samples // size)
        self.rule = Rule(model.skip, str(model.activation), options.reuse, options.online, size, batches, model.tokens)
        keys, self.teacher, _ = draw_weights(seeds, samples, model.layers, dim, 0.0)
        sources = [np.random.default_rng(streams.gradient_start_of_run(seed, samples, dim)) for seed in seeds]
        starts = np.array([source.normal(size=(model.layers, dim)) for source in sources])
        self.W = jnp.asarray(options.start_scale * starts, jnp.float32)
        counts = np.full(batches, size)
        X = None
        if not options.online:
            counts[-1] = samples - size * (batches - 1)
            X = DrawnTokens(keys, (len(seeds), samples, model.tokens, dim)).kept().X
            X = jnp.pad(X, ((0, 0), (0, size * batches - samples), (0, 0), (0, 0)))
            X = X.reshape(len(seeds), batches, size, model.tokens, dim)
        self.batches = Batches(X, keys, counts.astype(np.int32))

    def run(self, progress: Progress, label: str) -> list[Outcome]:
        """Run all epochs and return one outcome per seed."""
        options, parts = self.options, []
        numbers = np.array([options.learning_rate, options.weight_decay / self.dim], np.float32)
        look, began = 1, time.perf_counter()
        for epoch in range(options.epochs):
            self.W, part = _epoch(self.W, self.teacher, self.batches, numbers, np.int32(epoch), self.rule)
            parts.append(part)
            if epoch + 1 == look or epoch == options.epochs - 1:
                error = np.asarray(part.error)[:, -1]  # waits for the device, so that the message is true
                progress.message(f"{label}: epoch {epoch + 1} of {options.epochs}, {error.mean():.4g} per batch")
                if not np.isfinite(error).any():
                    break
                look += steps_of_next_call(epoch + 1, time.perf_counter() - began, _EPOCHS_PER_MESSAGE)
        columns = zip(*parts, strict=True)
        record = BatchRecord(*(np.concatenate([np.asarray(x, float) for x in column], axis=1) for column in columns))
        return [self._outcome(k, BatchRecord(*(x[k] for x in record))) for k in range(len(self.W))]

    def _outcome(self, k: int, record: BatchRecord) -> Outcome:
        W, teacher = (np.asarray(x[k], float) for x in (self.W, self.teacher))
        square = (teacher**2).sum(1)
        overlap = overlap_matrices(record.cross, record.size, square)
        cosine = abs(np.einsum("tpp->tp", record.cross)) / np.sqrt(record.size * square)
        learned, done, counts = cosine > _LEARNED, len(cosine), self.batches.counts
        points = np.geomspace(1, done, self.options.records) if done > self.options.records else np.arange(1, done + 1)
        kept = np.unique(points.round().astype(int)) - 1
        values = {
            "overlap": overlap[-1],
            "cosine": cosine[-1],
            "first_passage": np.where(learned.any(0), learned.argmax(0) + 1.0, np.nan),
            "test_error": self._test_error(W, teacher),
            "train_error": record.error[-len(counts) :].sum() / counts.sum(),
            "overlap_trace": overlap[kept],
            "cosine_trace": cosine[kept],
            "loss_trace": record.error[kept] / counts[kept % len(counts)],
            "step_trace": (kept + 1.0) * self.rule.reuse,
        }
        status, words = _verdict(overlap, record.error, self.options)
        return Outcome(values, status, words=words)

    def _test_error(self, W: np.ndarray, teacher: np.ndarray) -> float:
        if not np.isfinite(W).all():
            return np.nan
        found, true = fresh_fields(W, teacher, self.model.tokens)
        difference = _output(found, self.rule) - _output(true, self.rule)
        return float((difference**2).sum((1, 2)).mean())


def _verdict(overlap: np.ndarray, error: np.ndarray, options: SGD) -> tuple[Status, str]:
    """Return status and status text of a run, from overlaps (T, P, P) after T batches and errors (T,) before them."""
    diagonal = np.einsum("tpp->tp", overlap)
    if not (np.isfinite(diagonal).all() and np.isfinite(error).all()):
        return Status.FAILED, "failed: the weights grew beyond all numbers; try a smaller learning_rate"
    moved = np.ptp(diagonal[-max(len(diagonal) // 10, 2) :], axis=0).max()
    if options.epochs < _LEAST_EPOCHS:
        said = f"{options.epochs} epochs cannot show whether the overlap still moves; increase epochs"
        return Status.NOT_CONVERGED, f"not converged: {said} to {_LEAST_EPOCHS} or more"
    period = f"over the last tenth of {options.epochs} epochs"
    return of_movement("the overlap still moves by", moved, options.tolerance, period, "increase epochs")


def _output(Z: OneKind, rule: Rule) -> OneKind:
    return rank_one.output(Z, rule.skip, rule.activation)


@partial(jax.jit, static_argnames="rule")
def _epoch(
    W: jax.Array, teacher: jax.Array, batches: Batches, numbers: jax.Array, epoch: jax.Array, rule: Rule
) -> tuple[jax.Array, BatchRecord]:
    """Return the weights (S, P, D) after one epoch and the record of its batches, with axes (seed, batch, ...).

    ``numbers`` are the learning rate and the weight decay divided by D.
    """

    def one_batch(W: jax.Array, number: jax.Array) -> tuple[jax.Array, BatchRecord]:
        if rule.online:
            X = _fresh(batches.keys, number + epoch * rule.batches, W.shape[-1], rule)
        else:
            X = batches.X[:, number]
        labels = _output(fields(X, teacher), rule)

        def again(k: jax.Array, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            W, error = stepped(carried[0], X, labels, numbers, rule)
            return W, jnp.where(k == 0, error, carried[1])

        W, error = jax.lax.fori_loop(0, rule.reuse, again, (W, jnp.zeros(len(W), jnp.float32)))
        cross = jnp.einsum("spd,sqd->spq", W, teacher, precision="highest")
        return W, BatchRecord(cross, (W**2).sum(-1), error)

    W, record = jax.lax.scan(one_batch, W, jnp.arange(rule.batches))
    return W, BatchRecord(*(jnp.moveaxis(x, 0, 1) for x in record))


@partial(jax.jit, static_argnames="rule")
def stepped(
    W: jax.Array, X: jax.Array, labels: jax.Array, numbers: jax.Array, rule: Rule
) -> tuple[jax.Array, jax.Array]:
    """Return W (S, P, D) after one step on the tokens X (S, n, M, D), and the summed squared error (S,) before it.

    ``labels`` (S, n, M, M) are the teacher's outputs; ``numbers`` are learning rate and weight decay divided by D.
    """
    rate, decay = numbers
    error, G = _error(fields(X, W), labels, rule)
    return W - rate * (gathered(X, G) / X.shape[-1] + decay * W), error


def _error(Z: Array, labels: jax.Array, rule: Rule) -> tuple[jax.Array, jax.Array]:
    """Return the summed squared error (S,) of the outputs at fields Z (S, n, P, M), and its gradient in Z."""

    def total(Z: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = ((_output(Z, rule) - labels) ** 2).sum((1, 2, 3))
        return each.sum(), each

    G, each = jax.grad(total, has_aux=True)(Z)
    return each, G


def _fresh(keys: Array, number: jax.Array, dim: int, rule: Rule) -> jax.Array:
    """Draw the tokens (S, n, M, D) of the online batch with this ``number`` from keys (S, 2)."""
    return normals(keys, number, (rule.size, rule.tokens, dim))
