"""Training of the attention layer on finite data: full-batch Adam on the empirical risk, in single precision.

Boncoraglio et al., arXiv:2509.24914, eqs. (2), (3) and (20), with the penalty of eq. (20) times d; the optimiser is
that of Appendix E.

Equation ai-loss of docs/theory/attention_index.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...core.problem import Outcome, Problem
from ...core.runs import AlgorithmOnSamples, PointRuns
from ...core.status import Status, of_movement
from ...numerics import checks
from ...numerics.arrays import Array
from ...numerics.interrupts import steps_of_next_call
from ...numerics.memory import refuse_beyond_memory
from ...numerics.precision import single_precision
from ...numerics.programs.compiled import one_by_one
from .. import streams
from ..model import AttentionIndex
from ..risk import RiskMinimization
from ..theory.training_equations import Training, is_factorized
from . import training_data as data
from .learned_matrix import learned_matrix, penalty_and_gradient, spectral_observables, times
from .training_data import Chunk, Samples

if TYPE_CHECKING:
    from ...core.progress import Progress

    Made = TypeVar("Made")

#: Number of fresh samples on which test errors are measured. Smaller: noisier test errors.
FRESH_SAMPLES = 2**14
#: Largest number of steps per call of the compiled loop. Larger: an interrupt may wait longer.
_STEPS_PER_CALL = 50
#: Largest number of bytes of tokens for which several seeds run together on an accelerator.
_BYTES_TOGETHER = 2**29
#: Options that stop XLA from searching for the fastest matrix product on a GPU. With the search, compilation takes 28 s
#: for each number of samples instead of 3 s, many times longer than the training.
_FIRST_WAY = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
#: Final learning rate as a share of the initial one.
_FINAL_SHARE = 1e-3


@dataclass(frozen=True)
class Adam(AlgorithmOnSamples):
    """Full-batch Adam on the regularised risk of a :class:`RiskMinimization` problem.

    Adam minimises L / d^2, with W of width m = round(width_ratio d) and S = W W^T / sqrt(m d),

        L(W) = sum_mu ||y - A||_F^2 + weight_decay ||W||_F^2            (parameterization="factorized")
        L(S) = sum_mu ||y - A||_F^2 + weight_decay d ||S||_F^2          (parameterization="full"),

    A = sigma(beta h(S)), or with the problem's own loss and penalty. For output="sequence" the error is
    ||(y - A) x||_F^2 / d.

    Parameters
    ----------
    steps : int
        Number of steps. Small weight decay and little data need more, because the loss is flat; the status says so.
    learning_rate : float
        Initial rate; it falls to a thousandth along a cosine. At small weight decay, a smaller rate leaves flat
        directions unlearned and the rank too high.
    chunk : int, optional
        Number of samples processed at a time, rounded to multiples of 256; the default suits the device. The data do
        not depend on it.
    tolerance : float
        A run is converged if ``gradient_norm`` is at most this share of the loss.

    Notes
    -----
    Observables: ``train_loss`` = L / d^2; ``train_error`` and ``test_error`` per sample, on training data and on fresh
    data, both for the model's output; ``label_error``, the test error of y for any output; ``estimation_error`` =
    ||S - S_0||_F^2 / d; ``m`` = Tr(S S_0) / d; ``q`` = Tr(S^2) / d; ``eigenvalues`` of S; ``rank``, the share of
    eigenvalues of absolute value above 0.01; ``loss_trace``, L / d^2 before every step; ``gradient_norm``, the norm of
    the gradient of L / d^2 times the norm of the weights, which is the change of L / d^2 per relative change of the
    weights. If the target has spikes, also ``outlier_eigenvalue`` and ``outlier_overlap`` (squared) of the eigenvector
    that overlaps most with each spike.

    Without weight decay, the minimum is not unique where the data can be interpolated; Adam then finds another minimum
    than the theory. On an accelerator several seeds may run together; a run then differs by rounding from the same run
    alone.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, noise=0.5), weight_decay=0.1)
    >>> runs = asx.simulate(problem, asx.Adam(steps=100), alpha=1.0, dim=10, seeds=2, progress=False)
    >>> runs.test_error.dims, runs.eigenvalues.shape
    (('seed',), (2, 10))
    """

    steps: int = 700
    learning_rate: float = 0.2
    chunk: int | None = None
    tolerance: float = 0.02

    needs_dim: ClassVar[bool] = True
    samples_power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", checks.integer("steps", self.steps, 1))
        object.__setattr__(self, "learning_rate", float(checks.positive("learning_rate", self.learning_rate)))
        if self.chunk is not None:
            object.__setattr__(self, "chunk", checks.integer("chunk", self.chunk, 1))
        object.__setattr__(self, "tolerance", checks.share("tolerance", self.tolerance))

    def check(self, problem: Problem) -> None:
        """Refuse problems other than empirical risk minimisation, and losses without a version for sequence output."""
        training = _training(problem)
        if training.model.output == "sequence" and training.loss != "squared":
            raise TypeError(f"output='sequence' is trained with loss='squared', got loss={training.loss!r}")

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        return {**problem.dimensions(), "eigenvalues": ("eigenvalue",), "loss_trace": ("iteration",)}

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Raise if width_ratio times dim rounds to no column of W, or if a run does not fit into memory."""
        training, dim = _training(problem), runs.dim
        # weights, two means of their gradient, intermediate arrays and S; centres of every product, labels and trace
        pairs, columns = training.model.tokens**2, max(_width(training, dim), dim)
        needed = 4 * (8 * dim * columns + pairs * (dim**2 + 2 * runs.samples) + self.steps)
        refuse_beyond_memory(needed, f"one run ({runs.label}, dim={dim})", "a smaller dim or alpha")

    @single_precision()
    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Train with all seeds, several at once on an accelerator, and yield the index and outcome of each run."""
        training = _training(problem)
        for first, seeds in runs.batches(_together(training.model, runs)):
            yield from enumerate(self._run(training, runs, seeds, progress), first)

    def _run(self, problem: Training, runs: PointRuns, seeds: Sequence[int], progress: Progress) -> Iterator[Outcome]:
        """Train with all these seeds at once, and yield one outcome after the other."""
        model, dim, samples, width = problem.model, runs.dim, runs.samples, _width(problem, runs.dim)
        functions = problem.function("loss"), problem.function("penalty")
        settings = AdamSettings(self.steps, model.activation, problem.parameterization, *functions)
        nuclear = is_factorized(problem) and problem.penalty is None
        strength = problem.weight_decay * (np.sqrt(width / dim) if nuclear else 1.0)  # |W|_F^2 = d sqrt(m/d) Tr S
        numbers = np.array([model.beta, strength, self.learning_rate], np.float32)
        train = [
            data.draw_samples(model, dim, samples, seed, chunk=self.chunk, differences=settings.differences)
            for seed in seeds
        ]
        generators = [np.random.default_rng(streams.initial_weights(seed, dim, samples)) for seed in seeds]
        start = [_start(rng, dim, width, settings) for rng in generators]
        label = f"{runs.label}, seed {seeds[0]}" + (f" to {seeds[-1]}" if len(seeds) > 1 else "")
        if len(seeds) == 1:
            ends = [self._trained(start[0], train[0], numbers, settings, progress, label)]
        else:
            end = self._trained(_beside(start), _beside(train), numbers, settings, progress, label)
            ends = [AdamState(*(x[k] for x in end)) for k in range(len(seeds))]
        for seed, drawn, end in zip(seeds, train, ends, strict=True):
            if not np.isfinite(slope := float(end.slope)):
                raise FloatingPointError(f"the gradient became {slope}; try a smaller learning_rate")
            values = _report(model, samples, seed, end, drawn.centre, strength, settings)
            status, words = self._verdict(slope, np.asarray(end.trace, float))
            yield Outcome(values, status, words=words)

    def _trained(
        self,
        state: AdamState,
        train: Samples,
        numbers: np.ndarray,
        settings: AdamSettings,
        progress: Progress,
        label: str,
    ) -> AdamState:
        """Return the state after all steps, in short calls of the compiled loop; :func:`_train` defines ``numbers``."""
        first, together = 0, 1
        while first < self.steps:
            began, last = time.perf_counter(), min(first + together, self.steps)
            # The last call evaluates loss and gradient once more, with a step of size zero.
            span = np.int32(first), np.int32(last + (last == self.steps))
            state = _train(state, train, numbers, span, settings)
            loss = float(state.trace[..., last - 1].mean())  # waits for the device: the steps shown are done
            progress.message(f"{label}: step {last} of {self.steps}, loss {loss:.4g}")
            if not np.isfinite(loss):
                raise FloatingPointError(f"the loss became {loss} after {last} steps; try a smaller learning_rate")
            first, together = last, steps_of_next_call(last - first, time.perf_counter() - began, _STEPS_PER_CALL)
        return state

    def _verdict(self, slope: float, trace: np.ndarray) -> tuple[Status, str]:
        """Return the status and its sentence, from the losses (``trace``) and the final gradient norm (``slope``)."""
        before = trace[-1 - max(self.steps // 10, 1)]
        falling = 100 * (before - trace[-1]) / abs(before) if before else 0.0
        advice = f"the loss is still falling by {falling:.2g} % over the last tenth; increase steps"
        limit = self.tolerance * abs(trace[-1])
        return of_movement("the gradient norm still is", slope, limit, f"after {self.steps} steps", advice)


def _training(problem: Problem) -> Training:
    if not isinstance(problem, RiskMinimization):
        raise TypeError(f"Adam runs on RiskMinimization(AttentionIndex(...)), got {type(problem).__name__}")
    return problem


def _width(problem: Training, dim: int) -> int:
    """Return the number of columns of W."""
    width = round(problem.width_ratio * dim)
    if width < 1:
        raise ValueError(f"width_ratio * dim must be at least one column of W, got {problem.width_ratio:g} * {dim}")
    return width


def _together(model: AttentionIndex, runs: PointRuns) -> int:
    """Return the number of seeds trained at once: 1 on a CPU; more on an accelerator, which small runs leave idle."""
    if jax.default_backend() == "cpu":
        return 1
    return max(1, _BYTES_TOGETHER // (4 * model.tokens * runs.dim * runs.samples))


class AdamSettings(NamedTuple):
    """Settings on which the compiled program depends; see :class:`RiskMinimization`."""

    steps: int
    activation: str
    parameterization: str
    loss: str | Callable[..., Any] = "squared"
    penalty: Callable[..., Any] | None = None

    @property
    def differences(self) -> bool:
        """Whether the error depends only on differences of a row's pre-activations: a softmax with a built-in loss."""
        return self.activation != "linear" and not callable(self.loss)


class AdamState(NamedTuple):
    """Weights, running means of gradient and squared gradient, loss before each step (steps + 1,), last slope.

    The slope is the norm of the gradient of L / d^2 times the norm of the weights.
    """

    weights: Array
    mean: Array
    square: Array
    trace: Any
    slope: Any


def _start(rng: np.random.Generator, dim: int, width: int, settings: AdamSettings) -> AdamState:
    """Return the initial state, with random weights for which the eigenvalues of S are of order one."""
    if settings.parameterization == "factorized":
        weights = rng.normal(size=(dim, width))
    else:
        weights = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    zero, trace = np.zeros(weights.shape, np.float32), np.zeros(settings.steps + 1, np.float32)
    return AdamState(weights.astype(np.float32), zero, zero, trace, np.float32(0))


def _beside(runs: Sequence[Made]) -> Made:
    """Stack several states, or data sets, along a leading axis that counts runs."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)


@partial(jax.jit, static_argnames="settings", compiler_options=_FIRST_WAY)
def _train(
    state: AdamState, samples: Samples, numbers: jax.Array, span: tuple[jax.Array, jax.Array], settings: AdamSettings
) -> AdamState:
    """Do the steps of Adam in the ``span`` (first, last + 1), for one run or for several stacked runs.

    ``numbers`` are beta, the strength of the penalty and the initial learning rate.
    """
    steps = partial(_steps, numbers=numbers, span=span, settings=settings)
    return (jax.vmap(steps) if state.weights.ndim == 3 else steps)(state, samples)


def _steps(
    state: AdamState, samples: Samples, numbers: jax.Array, span: tuple[jax.Array, jax.Array], settings: AdamSettings
) -> AdamState:
    beta, strength, rate = numbers

    def step(t: jax.Array, state: AdamState) -> AdamState:
        loss, gradient = loss_and_gradient(state.weights, samples, beta, strength, settings)
        mean = 0.9 * state.mean + 0.1 * gradient
        square = 0.999 * state.square + 0.001 * gradient**2
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * t / settings.steps))
        size = jnp.where(t < settings.steps, rate * (_FINAL_SHARE + (1 - _FINAL_SHARE) * cosine), 0)
        count = t + jnp.float32(1)
        change = mean / (1 - 0.9**count) / (jnp.sqrt(square / (1 - 0.999**count)) + 1e-8)
        slope = jnp.linalg.norm(gradient) * jnp.linalg.norm(state.weights)
        return AdamState(state.weights - size * change, mean, square, state.trace.at[t].set(loss), slope)

    return jax.lax.fori_loop(*span, step, state)


def loss_and_gradient(
    weights: Array, samples: Samples, beta: jax.Array, strength: jax.Array, settings: AdamSettings
) -> tuple[jax.Array, jax.Array]:
    """Return L / d^2, where ``strength`` multiplies Tr r(S) / d, and its gradient with respect to the weights."""
    S, dim = learned_matrix(weights, settings.parameterization), weights.shape[0]
    error, slope = risk_and_gradient(S, samples, beta, settings)
    penalty, pull = penalty_and_gradient(S, settings.parameterization, settings.penalty)
    gradient = slope / dim**2 + strength / dim * pull
    if settings.parameterization == "factorized":
        gradient = 2 * times(gradient, weights) / np.float32(np.sqrt(weights.size))
    return error / dim**2 + strength / dim * penalty, gradient


def risk_and_gradient(
    S: Array, samples: Samples, beta: jax.Array, settings: AdamSettings
) -> tuple[jax.Array, jax.Array]:
    """Return the summed error E of all samples, and the symmetric dE/dS.

    With P_ck and F_c of :mod:`.training_data` and G_ck = dE/dP_ck of every sample, dE/dS = sum (sum_c G_ck F_c) F_k^T.
    This takes one matrix product forward and one back, each with K vectors of length d per sample.
    """
    shift, K = _shift(S, samples), samples.centre.shape[1]
    graded = _called(jax.value_and_grad(partial(_error, settings=settings)), settings)

    def contribution(chunk: Chunk) -> tuple[jax.Array, jax.Array, jax.Array]:
        P = data.products(chunk.tokens, S, K)
        error, G = graded(P, shift, chunk, beta)
        return error, data.gathered(G, chunk.tokens), G.sum(-1)

    error, slope, total = data.sum_over_chunks(samples, contribution)
    slope = slope - jnp.einsum("ck,ckde->de", total, samples.centre, precision="highest")
    return error, 0.5 * (slope + slope.T)


@partial(jax.jit, static_argnames="settings")
def risk(S: jax.Array, samples: Samples, beta: jax.Array, settings: AdamSettings) -> jax.Array:
    """Return the error of S (d, d) summed over all samples."""
    shift, K = _shift(S, samples), samples.centre.shape[1]
    error = _called(partial(_error, settings=settings), settings)

    def contribution(chunk: Chunk) -> jax.Array:
        return error(data.products(chunk.tokens, S, K), shift, chunk, beta)

    return data.sum_over_chunks(samples, contribution)


def _called(error: Callable[..., Made], settings: AdamSettings) -> Callable[..., Made]:
    """Return a function equal to ``error`` that does not hang on a CPU if the user's loss calls LAPACK."""
    return one_by_one(error) if callable(settings.loss) and jax.default_backend() == "cpu" else error


def _shift(S: Array, samples: Samples) -> jax.Array:
    return jnp.einsum("ckde,de->ck", samples.centre, S, precision="highest")


def _error(P: jax.Array, shift: jax.Array, chunk: Chunk, beta: jax.Array, settings: AdamSettings) -> jax.Array:
    """Return the summed error of a chunk, from its products P_ck (T, K, size) and ``shift`` Tr(S C_ck) (T, K)."""
    h = (P - shift[..., None]) / jnp.sqrt(jnp.float32(chunk.tokens.shape[-1]))
    if settings.differences:  # h_ab - h_aT of the tokens themselves
        h = jnp.pad(h.at[:-1].add(h[-1:]), ((0, 0), (0, 1), (0, 0)))
    if callable(settings.loss):
        return (jax.vmap(settings.loss, in_axes=-1)(chunk.labels, h) * chunk.weights).sum()
    if settings.loss == "cross_entropy":
        return -(chunk.labels * jax.nn.log_softmax(beta * h, axis=1) * chunk.weights).sum()
    residual = (data.activate(h, beta, settings.activation) - chunk.labels) * chunk.weights
    measured = residual if chunk.gram is None else jnp.einsum("abn,bcn->acn", residual, chunk.gram)
    return (residual * measured).sum()


def _report(
    model: AttentionIndex,
    samples: int,
    seed: int,
    state: AdamState,
    centre: jax.Array,
    strength: float,
    settings: AdamSettings,
) -> dict[str, float | np.ndarray]:
    """Return the observables of a trained layer."""
    S, trace = learned_matrix(state.weights, settings.parameterization), np.asarray(state.trace, float)
    dim = len(S)
    penalty = strength / dim * float(penalty_and_gradient(S, settings.parameterization, settings.penalty)[0])
    return {
        **_fresh_errors(model, seed, S, centre, settings),
        **spectral_observables(np.asarray(S, float), model.target.eigenvalues(dim), model.target.spikes),
        "train_loss": trace[-1],
        "train_error": (trace[-1] - penalty) * dim**2 / samples,
        "gradient_norm": float(state.slope),
        "loss_trace": trace[:-1],
    }


def _fresh_errors(
    model: AttentionIndex, seed: int, S: Array, centre: jax.Array, settings: AdamSettings
) -> dict[str, float]:
    """Return the errors per sample on new data, by name; ``centre`` is the field of :class:`Samples`."""
    drawn = data.draw_samples(
        model, len(S), FRESH_SAMPLES, seed, stream=streams.FRESH, differences=settings.differences
    )
    fresh, beta = drawn._replace(centre=centre), np.float32(model.beta)
    error = label = float(risk(S, fresh, beta, settings)) / FRESH_SAMPLES
    if model.output == "sequence":
        label = float(risk(S, fresh._replace(gram=None), beta, settings)) / FRESH_SAMPLES
    return {"test_error": error, "label_error": label}
