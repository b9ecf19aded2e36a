"""Training of attention with tied queries and keys to classify sequences; the weights are recorded along the way.

The experiment is from Troiani et al., arXiv:2502.00901, section 4, Fig. 3 right and appendix F. Text and released code
differ; both settings are available here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ...core.progress import Progress, as_progress
from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from .. import streams
from .adamw import LIBRARIES, adamw
from .layer_convergence import similarity
from .tied_attention import ClassifierParameters, cross_entropy, logits, random_start

if TYPE_CHECKING:
    import optax

    #: Parameters and the optimiser's state, and a set of examples: tokens and labels.
    _State: TypeAlias = tuple[ClassifierParameters, optax.OptState]
    _Examples: TypeAlias = tuple[jax.Array, jax.Array]


class ClassifiedSequences(Protocol):
    """Data of a task: token numbers (examples, M), labels (examples,), and the same for held-out examples."""

    @property
    def tokens(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def validation_tokens(self) -> np.ndarray: ...
    @property
    def validation_labels(self) -> np.ndarray: ...
    @property
    def vocabulary_size(self) -> int: ...


@dataclass(frozen=True)
class AttentionClassifier:
    """A network of attention layers with tied queries and keys, and the settings of its training.

    Scores of layer l are score_scale h h^T with h = x w_l^T + b_l. There is no skip connection and no mask; the average
    over all positions is read out linearly. AdamW trains all weights, including the embeddings, on the cross entropy.

    Parameters
    ----------
    layers, features, rank, classes : int
        L, D, P and the number of classes.
    score_scale : float
        Factor of the scores.
    key_bias : bool
        Whether the keys have an offset b_l that is trained.
    key_sd : float
        Standard deviation of the entries of w_l at the start.
    optimizer : "transformers" or "torch"
        Library whose AdamW is used, with its defaults: "transformers" has no weight decay and 1e-6 in the denominator,
        "torch" has weight decay 0.01 and 1e-8.
    learning_rate : float
    batch : int
        Number of examples per step; the last batch of an epoch may be smaller.

    Examples
    --------
    >>> import asymptotix as asx
    >>> asx.AttentionClassifier.printed().score_scale == 1 / 128
    True
    >>> tasks = [asx.tasks.trec(seed=seed) for seed in range(8)]              # doctest: +SKIP
    >>> runs = asx.AttentionClassifier.released().train(tasks, epochs=40)     # doctest: +SKIP
    >>> runs.history.similarity.mean("seed").plot(hue="layer")                # doctest: +SKIP
    """

    layers: int = 2
    features: int = 128
    rank: int = 64
    classes: int = 6
    score_scale: float = 0.125
    key_bias: bool = True
    key_sd: float = 0.1
    optimizer: str = "transformers"
    learning_rate: float = 5e-5
    batch: int = 16

    @classmethod
    def released(cls) -> Self:
        """Return the settings of the code published with arXiv:2502.00901: scores / sqrt(P), key_sd 0.1."""
        return cls()

    @classmethod
    def printed(cls) -> Self:
        """Return the settings of appendix F of arXiv:2502.00901: scores / D, no bias, key_sd 1e-4, AdamW of PyTorch."""
        return cls(score_scale=1 / 128, key_bias=False, key_sd=1e-4, optimizer="torch")

    def __post_init__(self) -> None:
        for name in ("layers", "features", "rank", "batch"):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        object.__setattr__(self, "classes", checks.integer("classes", self.classes, 2))
        for name in ("score_scale", "key_sd", "learning_rate"):
            object.__setattr__(self, name, float(checks.positive(name, getattr(self, name))))
        checks.one_of("key_bias", self.key_bias, (False, True))
        checks.one_of("optimizer", self.optimizer, LIBRARIES)

    def train(
        self,
        tasks: Sequence[ClassifiedSequences],
        *,
        epochs: int = 40,
        record_every: int = 7,
        seeds: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> TrainedClassifiers:
        """Train one network on each task, all at the same time.

        Parameters
        ----------
        tasks : sequence of tasks of the same size
            For example :func:`asymptotix.tasks.trec` of several seeds.
        epochs : int
        record_every : int
            Number of steps between two records of the weights. Counting restarts in every epoch; the end of an epoch is
            also recorded.
        seeds : sequence of int, optional
            One seed per run, for the start and the order of the batches; 0, 1, ... by default. A run does not depend
            on the other runs.
        progress : bool, optional
            As for :func:`asymptotix.solve`.

        Notes
        -----
        Embeddings of tokens that do not occur have no gradient and are never read. They are not stored, which changes
        nothing else.
        """
        epochs, every = checks.integer("epochs", epochs, 1), checks.integer("record_every", record_every, 1)
        numbers = range(len(tasks)) if seeds is None else seeds
        chosen = [checks.integer("seeds", seed, 0, 2**32 - 1) for seed in numbers]
        runs = _ClassifierRuns(self, tasks, chosen)
        steps = recorded_steps(runs.batches, epochs, every)
        way = 4 * len(chosen) * self.layers * self.rank * self.features * len(steps)  # and a copy of it
        what = f"the way of {len(chosen)} networks in {len(steps)} records"
        refuse_beyond_memory(2 * way, what, "a larger record_every")
        with as_progress(progress, epochs, "training classifiers") as shown:
            return runs.train(epochs, every, steps, shown)


@dataclass(frozen=True, eq=False)
class TrainedClassifiers:
    """Trained networks, one per task.

    Attributes
    ----------
    classifier : AttentionClassifier
    keys : array (seed, layer, P, D)
        Final w_l.
    history : xarray.Dataset
        ``similarity(seed, layer, step)`` of K = w w^T (P x P) to its last iterate, the published quantity;
        ``score_similarity``, the similarity of w^T w (D x D), on which the scores depend; ``norm`` = |w|_F. For every
        epoch: ``train_loss``, the mean over its batches, each before its step; ``validation_accuracy`` at its end.
        Layers count from one.
    """

    classifier: AttentionClassifier
    keys: np.ndarray
    history: xr.Dataset


class _Rule(NamedTuple):
    """Options that decide which program is compiled; ``every`` is the number of steps between two records."""

    classifier: AttentionClassifier
    every: int


class _ClassifierRuns:
    """Data and parameters of all runs, arrays whose first axis is the run; one task and one seed per run."""

    def __init__(
        self, classifier: AttentionClassifier, tasks: Sequence[ClassifiedSequences], seeds: Sequence[int]
    ) -> None:
        self.classifier, self.seeds = classifier, seeds
        names = ("tokens", "labels", "validation_tokens", "validation_labels")
        tokens, labels, held_tokens, held_labels = (_stacked(tasks, name, seeds) for name in names)
        vocabulary = max(task.vocabulary_size for task in tasks)
        _within("labels", labels, classifier.classes)
        _within("validation_labels", held_labels, classifier.classes)
        used = np.unique(np.concatenate([tokens.ravel(), held_tokens.ravel()]))
        _within("tokens", used, vocabulary)
        self.data = (np.searchsorted(used, tokens).astype(np.int32), labels)
        self.held_out = (np.searchsorted(used, held_tokens).astype(np.int32), held_labels)
        starts = [_start(classifier, vocabulary, used, seed) for seed in seeds]
        self.parameters = ClassifierParameters(*(np.stack(parts) for parts in zip(*starts, strict=True)))
        self.batches = -(-tokens.shape[1] // classifier.batch)

    def train(self, epochs: int, every: int, steps: np.ndarray, progress: Progress) -> TrainedClassifiers:
        """Train for all epochs, with one call of the compiled loop per epoch."""
        state, rule = _prepared(self.parameters, self.classifier), _Rule(self.classifier, every)
        records, losses, accuracies = [self.parameters.keys[:, None]], [], []
        for epoch in range(epochs):
            order = np.stack([self._order(seed, epoch) for seed in self.seeds])
            state, keys, loss = _epoch(state, self.data, order, rule)
            records.append(np.asarray(keys))
            losses.append(np.asarray(loss, float))
            accuracies.append(np.asarray(_accuracy(state[0], self.held_out, self.classifier), float))
            if not np.isfinite(losses[-1]).all():
                raise FloatingPointError(f"the loss of epoch {epoch + 1} is not finite; try a smaller learning_rate")
            now = f"loss {losses[-1].mean():.3f}, {100 * accuracies[-1].mean():.1f} % right"
            progress.advance(1, f"epoch {epoch + 1}: {now}")
        keys = np.concatenate(records, axis=1)
        history = _history(keys, np.stack(losses, axis=1), np.stack(accuracies, axis=1))
        history = history.assign_coords(seed=list(self.seeds), step=steps)
        return TrainedClassifiers(self.classifier, keys[:, -1], history)

    def _order(self, seed: int, epoch: int) -> np.ndarray:
        """Return the numbers of the examples, (batches, batch), in the order of an epoch; -1 fills the last batch."""
        count, size = self.data[0].shape[1], self.classifier.batch
        order = np.random.default_rng(streams.batches_of_run(seed, epoch)).permutation(count)
        return np.pad(order, (0, self.batches * size - count), constant_values=-1).reshape(-1, size).astype(np.int32)


def _stacked(tasks: Sequence[ClassifiedSequences], name: str, seeds: Sequence[int]) -> np.ndarray:
    if not tasks or len(tasks) != len(seeds):
        raise ValueError(f"tasks must be as many as seeds and at least one, got {len(tasks)} and {len(seeds)}")
    arrays = [np.asarray(getattr(task, name)) for task in tasks]
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise ValueError(f"tasks must have the same size, got {name} of shapes {sorted(shapes)}")
    return np.stack(arrays).astype(np.int32)


def _within(name: str, values: np.ndarray, count: int) -> None:
    if values.min() < 0 or values.max() >= count:
        raise ValueError(f"{name} must be from 0 to {count - 1}, got {values.min()} to {values.max()}")


def _start(classifier: AttentionClassifier, vocabulary: int, used: np.ndarray, seed: int) -> ClassifierParameters:
    """Return a run's start, with embeddings of the tokens ``used`` only.

    Embeddings are drawn for the whole vocabulary, so that they do not depend on which tokens occur.
    """
    rng = np.random.default_rng(streams.classifier_start_of_run(seed))
    sizes = {name: getattr(classifier, name) for name in ("features", "layers", "rank", "classes", "key_sd")}
    start = random_start(rng, vocabulary=vocabulary, **sizes)
    return start._replace(embedding=start.embedding[used])


def recorded_steps(batches: int, epochs: int, every: int) -> np.ndarray:
    """Return the numbers of the steps after which weights are recorded, ascending; zero is the start.

    These are the steps ``every``, 2 ``every``, ... of each epoch, and its last step.
    """
    within = np.unique([*range(every, batches + 1, every), batches])
    return np.concatenate([[0], (batches * np.arange(epochs)[:, None] + within).ravel()])


def _history(keys: np.ndarray, losses: np.ndarray, accuracies: np.ndarray) -> xr.Dataset:
    ways = np.moveaxis(keys, 1, 2)  # (seed, layer, step, P, D)
    along, each = ("seed", "layer", "step"), ("seed", "epoch")
    variables = {
        "similarity": (along, similarity(ways)),
        "score_similarity": (along, similarity(ways.swapaxes(-1, -2))),
        "norm": (along, np.sqrt(np.einsum("...ij,...ij->...", ways, ways, dtype=float))),
        "train_loss": (each, losses),
        "validation_accuracy": (each, accuracies),
    }
    layers, epochs = ways.shape[1], losses.shape[1]
    return xr.Dataset(variables, coords={"layer": np.arange(1, layers + 1), "epoch": np.arange(1, epochs + 1)})


def _optimizer(classifier: AttentionClassifier) -> optax.GradientTransformation:
    return adamw(classifier.optimizer, classifier.learning_rate)


@partial(jax.jit, static_argnames="classifier")
def _prepared(parameters: ClassifierParameters, classifier: AttentionClassifier) -> _State:
    return parameters, jax.vmap(_optimizer(classifier).init)(parameters)


@partial(jax.jit, static_argnames="rule", donate_argnames="state")
def _epoch(state: _State, data: _Examples, order: jax.Array, rule: _Rule) -> tuple[_State, jax.Array, jax.Array]:
    """Use all batches once; return the state, the recorded keys (run, record, layer, P, D) and mean losses (run,).

    ``order`` (run, batches, batch) are numbers of examples, -1 for none.
    """
    classifier, every = rule
    optimizer = _optimizer(classifier)

    def run(state: _State, data: _Examples, order: jax.Array) -> tuple[_State, jax.Array, jax.Array]:
        tokens, labels = data

        def step(
            carried: tuple[_State, jax.Array], given: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[_State, jax.Array], jax.Array]:
            (parameters, moments), records = carried
            number, batch = given
            examples = (tokens[batch], labels[batch], batch >= 0, classifier)
            loss, gradient = jax.value_and_grad(batch_loss)(parameters, *examples)
            change, moments = optimizer.update(gradient, moments, parameters)
            parameters = jax.tree.map(jnp.add, parameters, change)
            records = records.at[number // every].set(parameters.keys)  # the last record of several remains
            return ((parameters, moments), records), loss

        batches = len(order)
        records = jnp.zeros((-(-batches // every), *state[0].keys.shape), jnp.float32)
        (state, records), losses = jax.lax.scan(step, (state, records), (jnp.arange(batches), order))
        return state, records, losses.mean()

    with jax.default_matmul_precision("highest"):  # full float32; GPUs use less by default
        return jax.vmap(run)(state, data, order)


def batch_loss(
    parameters: ClassifierParameters,
    tokens: jax.Array,
    labels: jax.Array,
    weight: jax.Array,
    classifier: AttentionClassifier,
) -> jax.Array:
    """Return the mean cross entropy of the examples (n, M) with labels (n,), weighted by ``weight`` (n,), 0 or 1."""
    found = logits(parameters, tokens, score_scale=classifier.score_scale, key_bias=classifier.key_bias)
    return cross_entropy(found, labels, weight)


@partial(jax.jit, static_argnames="classifier")
def _accuracy(parameters: ClassifierParameters, data: _Examples, classifier: AttentionClassifier) -> jax.Array:
    """Return, for every run, the fraction (run,) of examples that are classified correctly."""

    def one(parameters: ClassifierParameters, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        found = logits(parameters, tokens, score_scale=classifier.score_scale, key_bias=classifier.key_bias)
        return (found.argmax(axis=-1) == labels).mean()

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(parameters, *data)
