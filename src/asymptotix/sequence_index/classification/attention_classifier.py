"""Training of attention with tied queries and keys on classified sequences, with the weights' way recorded.

The experiment is that of Troiani et al., arXiv:2502.00901, section 4, Fig. 3 right and appendix F. Text and released
code differ; both are described here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from ...core.progress import Progress, as_progress
from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from .. import streams
from .layer_convergence import similarity
from .tied_attention import ClassifierParameters, cross_entropy, logits, random_start

#: Decay of the means of the gradient and of its square.
_BETA1, _BETA2 = 0.9, 0.999


class ClassifiedSequences(Protocol):
    """What a task must have to be learned: token numbers (examples, M), labels (examples,) and held-out ones."""

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
    """A network of attention layers with tied queries and keys, and how it is trained.

    Scores of layer l are score_scale h h^T with h = x w_l^T + b_l; there is no skip connection, no mask, and the
    average over all positions is read out linearly. All weights are trained, the embeddings too, by AdamW on the cross
    entropy.

    Parameters
    ----------
    layers, features, rank, classes : int
        L, D, P and the number of classes.
    score_scale : float
        What scores are multiplied by.
    key_bias : bool
        Whether the keys have an offset b_l that is trained.
    key_sd : float
        Standard deviation of the entries of w_l at the start.
    optimizer : "transformers" or "torch"
        Which library's AdamW, with what it does where nothing is said. Transformers: no weight decay, and 1e-6 is added
        to the root of the mean squared gradient before its bias is corrected. PyTorch: weight decay 0.01, and 1e-8 is
        added after that.
    learning_rate : float
    batch : int
        Questions per step; the last batch of an epoch may be smaller.

    Examples
    --------
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
        """As in the code that was published with arXiv:2502.00901: scores over sqrt(P), start of size 0.1."""
        return cls()

    @classmethod
    def printed(cls) -> Self:
        """As in appendix F of arXiv:2502.00901: scores over D, no bias, start of size 1e-4, AdamW of PyTorch."""
        return cls(score_scale=1 / 128, key_bias=False, key_sd=1e-4, optimizer="torch")

    def __post_init__(self) -> None:
        for name in ("layers", "features", "rank", "batch"):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), 1))
        object.__setattr__(self, "classes", checks.integer("classes", self.classes, 2))
        for name in ("score_scale", "key_sd", "learning_rate"):
            object.__setattr__(self, name, float(checks.positive(name, getattr(self, name))))
        checks.one_of("key_bias", self.key_bias, (False, True))
        checks.one_of("optimizer", self.optimizer, ("transformers", "torch"))

    def train(
        self,
        tasks: Sequence[ClassifiedSequences],
        *,
        epochs: int = 40,
        record_every: int = 7,
        seeds: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> TrainedClassifiers:
        """Train one network on each task, all at once.

        Parameters
        ----------
        tasks : sequence of tasks of the same size
            Such as :func:`asymptotix.tasks.trec` of several seeds.
        epochs : int
        record_every : int
            Steps from one record of the weights to the next, counted in every epoch anew; its end is recorded too.
        seeds : sequence of int, optional
            Of the start and of the order of the batches of each run; 0, 1, ... where none are given. A run does not
            depend on what is run beside it.
        progress : bool, optional
            As for :func:`asymptotix.solve`.

        Notes
        -----
        Embeddings of tokens that do not occur have no gradient and are not read: only those that occur are held, which
        changes nothing else.
        """
        epochs, every = checks.integer("epochs", epochs, 1), checks.integer("record_every", record_every, 1)
        chosen = [checks.integer("seeds", seed, 0, 2**32 - 1) for seed in (range(len(tasks)) if seeds is None else seeds)]
        work = _Work(self, tasks, chosen)
        steps = _recorded_steps(work.batches, epochs, every)
        held = 4 * len(chosen) * self.layers * self.rank * self.features * len(steps)
        refuse_beyond_memory(3 * held, f"the way of {len(chosen)} networks in {len(steps)} records", "a larger record_every")
        return work.run(epochs, every, steps, as_progress(progress, epochs, "training classifiers"))


@dataclass(frozen=True, eq=False)
class TrainedClassifiers:
    """Networks that were trained, one per task.

    Attributes
    ----------
    classifier : AttentionClassifier
    keys : array (seed, layer, P, D)
        w_l in the end.
    history : xarray.Dataset
        ``similarity(seed, layer, step)`` of K = w w^T (P x P) to that of the last iterate, the quantity of Fig. 3 right,
        ``score_similarity`` the same of w^T w (D x D), which the scores depend on, ``norm`` = |w|_F; for every epoch
        ``train_loss`` (the mean over its batches, each before its step) and ``validation_accuracy`` at its end. Layers
        count from one.
    """

    classifier: AttentionClassifier
    keys: np.ndarray
    history: xr.Dataset


class _Rule(NamedTuple):
    """What decides which program is compiled."""

    classifier: AttentionClassifier
    every: int


class _Work:
    """The arrays of all runs, the run being the first axis."""

    def __init__(self, classifier: AttentionClassifier, tasks: Sequence[Any], seeds: Sequence[int]) -> None:
        self.classifier, self.seeds = classifier, seeds
        self.tokens, self.labels = _stacked(tasks, "tokens", seeds), _stacked(tasks, "labels", seeds)
        self.held_tokens, self.held_labels = (_stacked(tasks, f"validation_{name}", seeds) for name in ("tokens", "labels"))
        vocabulary = max(task.vocabulary_size for task in tasks)
        if self.labels.max() >= classifier.classes or self.labels.min() < 0:
            raise ValueError(f"labels must be from 0 to {classifier.classes - 1}, got {np.unique(self.labels)}")
        used = np.unique(np.concatenate([self.tokens.ravel(), self.held_tokens.ravel()]))
        if used[0] < 0 or used[-1] >= vocabulary:
            raise ValueError(f"tokens must be from 0 to {vocabulary - 1}, got {used[0]} to {used[-1]}")
        self.tokens, self.held_tokens = (
            np.searchsorted(used, tokens).astype(np.int32) for tokens in (self.tokens, self.held_tokens)
        )
        starts = [_start(classifier, vocabulary, seed) for seed in seeds]
        starts = [start._replace(embedding=start.embedding[used]) for start in starts]
        self.parameters = ClassifierParameters(*(np.stack(parts) for parts in zip(*starts, strict=True)))
        self.batches = -(-self.tokens.shape[1] // classifier.batch)

    def run(self, epochs: int, every: int, steps: np.ndarray, progress: Progress) -> TrainedClassifiers:
        state = _prepared(self.parameters, self.classifier)
        data, held = (self.tokens, self.labels), (self.held_tokens, self.held_labels)
        rule, records = _Rule(self.classifier, every), [self.parameters.keys[:, None]]
        losses, accuracies = [], []
        with progress:
            for epoch in range(epochs):
                order = np.stack([self._order(seed, epoch) for seed in self.seeds])
                state, keys, loss = _epoch(state, data, order, rule)
                accuracies.append(np.asarray(_accuracy(state[0], held, self.classifier)))
                records.append(np.asarray(keys))
                losses.append(np.asarray(loss))
                progress.advance(1, f"epoch {epoch + 1}: loss {losses[-1].mean():.3f}, {accuracies[-1].mean():.1%} right")
        keys = np.concatenate(records, axis=1)
        return TrainedClassifiers(self.classifier, keys[:, -1], self._history(keys, steps, losses, accuracies))

    def _order(self, seed: int, epoch: int) -> np.ndarray:
        """Examples of every batch; -1 where the last one has none."""
        count, size = self.tokens.shape[1], self.classifier.batch
        order = np.random.default_rng(streams.batches_of_run(seed, epoch)).permutation(count)
        return np.pad(order, (0, self.batches * size - count), constant_values=-1).reshape(-1, size).astype(np.int32)

    def _history(
        self, keys: np.ndarray, steps: np.ndarray, losses: list[np.ndarray], accuracies: list[np.ndarray]
    ) -> xr.Dataset:
        ways = np.moveaxis(keys, 1, 2)  # (seed, layer, step, P, D)
        along, each = ("seed", "layer", "step"), ("seed", "epoch")
        variables = {
            "similarity": (along, similarity(ways)),
            "score_similarity": (along, similarity(ways.swapaxes(-1, -2))),
            "norm": (along, np.linalg.norm(ways, axis=(-2, -1))),
            "train_loss": (each, np.stack(losses, axis=1)),
            "validation_accuracy": (each, np.stack(accuracies, axis=1)),
        }
        coords = {
            "seed": list(self.seeds),
            "layer": np.arange(1, self.classifier.layers + 1),
            "step": steps,
            "epoch": np.arange(1, len(losses) + 1),
        }
        return xr.Dataset(variables, coords=coords)


def _stacked(tasks: Sequence[Any], name: str, seeds: Sequence[int]) -> np.ndarray:
    if not tasks or len(tasks) != len(seeds):
        raise ValueError(f"tasks must be as many as seeds and at least one, got {len(tasks)} and {len(seeds)}")
    arrays = [np.asarray(getattr(task, name)) for task in tasks]
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise ValueError(f"tasks must have the same size, got {name} of shapes {sorted(shapes)}")
    return np.stack(arrays).astype(np.int32)


def _start(classifier: AttentionClassifier, vocabulary: int, seed: int) -> ClassifierParameters:
    sizes = {name: getattr(classifier, name) for name in ("features", "layers", "rank", "classes", "key_sd")}
    return random_start(np.random.default_rng(streams.classifier_start_of_run(seed)), vocabulary=vocabulary, **sizes)


def _recorded_steps(batches: int, epochs: int, every: int) -> np.ndarray:
    """Numbers of the recorded steps, from zero on."""
    within = np.unique([*range(every, batches + 1, every), batches])
    return np.concatenate([[0], (batches * np.arange(epochs)[:, None] + within).ravel()])


def adamw(classifier: AttentionClassifier) -> Any:
    """The optimiser, of the package optax."""
    try:
        import optax
    except ImportError as error:
        raise ImportError('training needs the package optax: pip install "asymptotix[data]"') from error
    rate = classifier.learning_rate
    if classifier.optimizer == "torch":
        return optax.adamw(rate, b1=_BETA1, b2=_BETA2, eps=1e-8, weight_decay=0.01)

    def epsilon(step: Any) -> Any:
        return 1e-6 / jnp.sqrt(1 - _BETA2 ** (step + 1.0))

    scheduled = optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps_root", "weight_decay", "nesterov"))
    return scheduled(rate, b1=_BETA1, b2=_BETA2, eps=epsilon, weight_decay=0.0)


@partial(jax.jit, static_argnames="classifier")
def _prepared(parameters: Any, classifier: AttentionClassifier) -> Any:
    return parameters, jax.vmap(adamw(classifier).init)(parameters)


@partial(jax.jit, static_argnames="rule", donate_argnames="state")
def _epoch(state: Any, data: Any, order: Any, rule: _Rule) -> tuple[Any, Any, Any]:
    """All batches once: the state after them, the keys (run, record, layer, P, D) on the way, and the mean loss."""
    classifier, every = rule
    optimizer = adamw(classifier)

    def run(state: Any, data: Any, order: Any) -> tuple[Any, Any, Any]:
        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            parameters, moments = state
            loss, gradient = jax.value_and_grad(batch_loss)(parameters, data[0][batch], data[1][batch], batch >= 0, classifier)
            change, moments = optimizer.update(gradient, moments, parameters)
            return (jax.tree.map(jnp.add, parameters, change), moments), loss

        def block(state: Any, batches: Any) -> tuple[Any, tuple[Any, Any]]:
            state, losses = jax.lax.scan(step, state, batches)
            return state, (state[0].keys, losses.sum())

        whole = len(order) // every * every
        state, (keys, losses) = jax.lax.scan(block, state, order[:whole].reshape(-1, every, order.shape[-1]))
        total = losses.sum()
        if whole < len(order):
            state, (last, loss) = block(state, order[whole:])
            keys, total = jnp.concatenate([keys, last[None]]), total + loss
        return state, keys, total / len(order)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(run)(state, data, order)


def batch_loss(parameters: Any, tokens: Any, labels: Any, weight: Any, classifier: AttentionClassifier) -> Any:
    """Mean cross entropy of the examples of non-zero weight."""
    found = logits(parameters, tokens, score_scale=classifier.score_scale, key_bias=classifier.key_bias)
    return cross_entropy(found, labels, weight)


@partial(jax.jit, static_argnames="classifier")
def _accuracy(parameters: Any, data: Any, classifier: AttentionClassifier) -> Any:
    """Share (run,) of the examples that are classified rightly."""

    def one(parameters: Any, tokens: Any, labels: Any) -> Any:
        found = logits(parameters, tokens, score_scale=classifier.score_scale, key_bias=classifier.key_bias)
        return (found.argmax(axis=-1) == labels).mean()

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(parameters, *data)
