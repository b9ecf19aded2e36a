"""Matrix approximate message passing, for regularised training and for Bayes-optimal learning.

In the N visible coordinates r = A S of n samples' pre-activations (A linear; z0 are the target's noisy coordinates) an
iteration is

    r = A S - V f_old,    f = f_out(z0, r, V),    Lambda = -(2/d^2) sum df/dr,    Theta = (2/d) A^T f + Lambda S,
    S = phi(Theta, Lambda),    V = (2/d^2) sum_{i<=j} (T_i - T_j) / (D_i - D_j),

where f_out gives the scores of :meth:`Estimator.respond`, and phi maps the eigenvalues D of Theta to the eigenvalues T
of S. In state evolution V = Sigma, Lambda = Sigmahat.

Boncoraglio et al., arXiv:2509.24914, eqs. (41), (42), with r = Omega/sqrt2 in visible directions; the penalty in phi,
eq. (39), is divided by d, where the paper prints d^2.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ...core.problem import Outcome, Problem
from ...core.runs import AlgorithmOnSamples, PointRuns
from ...core.status import of_movement
from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from ...numerics.quadrature import sobol_normals
from .. import streams
from ..loss.visible_directions import logit_matrix
from ..model import AttentionIndex
from ..theory.amp_dynamics import FIRST_RESPONSE
from ..theory.bayes import AttentionIndexTheory
from ..theory.training_equations import Training, decay_of_matrix, is_factorized
from ..theory.training_theory import TrainingTheory
from .learned_matrix import spectral_observables
from .sensing import GaussianSensing, Sensing, TokenSensing

if TYPE_CHECKING:
    from ...core.progress import Progress

SENSING = {"gaussian": GaussianSensing, "tokens": TokenSensing}
#: Smallest variance of z0 - r that single precision resolves.
_RESOLVED = 1e-10
#: Draws from the posterior per test sample, for each of two independent estimates of the mean label.
_POSTERIOR_DRAWS = 2**4
_NO_RESPONSE = 1e-9


@dataclass(frozen=True)
class MatrixAMP(AlgorithmOnSamples):
    """Message passing for ``RiskMinimization`` and ``BayesOptimal`` problems with an :class:`AttentionIndex`.

    Parameters
    ----------
    iterations : int
        Number of iterations.
    sensing : "gaussian" or "tokens"
        "gaussian": an independent matrix from the Gaussian orthogonal ensemble measures each visible coordinate of a
        pre-activation; for this setting state evolution is proven. "tokens": the data on which :class:`Adam` trains for
        the same seed; both reach the same minimum. Finite-size effects are larger and damping=0.5 is needed.
    damping : float
        Weight of the new iterate in (0, 1]; 1 is undamped.
    tolerance : float
        A run is converged if the last iteration, undamped, would have changed S by less than this share of its norm.

    Notes
    -----
    Message passing uses labels even if the model's output is a sequence; both have the same limit. Observables: last
    values and traces of ``V``, ``Lambda``, ``m`` = Tr(S S_0) / d and ``q`` = Tr(S^2) / d; ``test_error``,
    ``estimation_error``, ``eigenvalues``, ``rank`` and outliers as for :class:`Adam`; for training also
    ``train_error`` and ``train_loss``. The test error of Bayes-optimal learning is that of the posterior mean of the
    label.

    Examples
    --------
    >>> import asymptotix as asx
    >>> problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, noise=0.5), weight_decay=0.1)
    >>> runs = asx.simulate(problem, asx.MatrixAMP(iterations=5), alpha=1.0, dim=20, seeds=2, progress=False)
    >>> runs.q_trace.dims, runs.q_trace.shape
    (('seed', 'iteration'), (2, 5))
    """

    iterations: int = 40
    sensing: str = "gaussian"
    damping: float = 1.0
    tolerance: float = 1e-3

    needs_dim: ClassVar[bool] = True
    samples_power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", checks.integer("iterations", self.iterations, 1))
        checks.one_of("sensing", self.sensing, tuple(SENSING))
        object.__setattr__(self, "damping", float(checks.positive("damping", self.damping)))
        object.__setattr__(self, "tolerance", checks.share("tolerance", self.tolerance))
        if self.damping > 1:
            raise ValueError(f"damping must be in (0, 1] (1 is undamped), got {self.damping}")

    def check(self, problem: Problem) -> None:
        """Refuse models other than attention, other estimators, and activations that hide the pre-activation."""
        theory = _theory(problem)
        if theory.model.activation == "hardmax":
            raise TypeError("MatrixAMP needs activation='softmax' or 'linear', got 'hardmax'")
        if isinstance(theory, TrainingTheory):
            training = theory.problem
            if training.weight_decay == 0:
                raise ValueError("MatrixAMP needs weight_decay > 0: it does not take the limit of vanishing one, got 0")
            if training.loss != "squared" or training.penalty is not None:
                raise TypeError(
                    f"MatrixAMP needs loss='squared' and penalty=None, got {training.loss!r}, {training.penalty!r}"
                )

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        return {**problem.dimensions(), "eigenvalues": ("eigenvalue",)}

    def trace_options(self, problem: Problem) -> Mapping[str, Any]:
        if self.damping < 1:
            raise ValueError(f"state evolution follows message passing without damping, got damping={self.damping}")
        return {"iterations": self.iterations, "damping": self.damping}

    def check_size(self, problem: Problem, runs: PointRuns) -> None:
        """Refuse runs whose matrices, eigenvectors or measurements exceed the memory."""
        matrices = 8 * 12 * runs.dim**2
        refuse_beyond_memory(matrices, f"one run ({runs.label}, dim={runs.dim})", "a smaller dim")
        SENSING[self.sensing].check_memory(_theory(problem).model, runs.dim, runs.samples)

    def run_point(self, problem: Problem, runs: PointRuns, progress: Progress) -> Iterator[tuple[int, Outcome]]:
        """Run one seed after the other, and yield the index and outcome of each run."""
        estimator = _estimator(_theory(problem))
        for k, seed, label in runs.each():
            sensing = SENSING[self.sensing](estimator.model, runs.dim, runs.samples, seed)
            yield k, self._run(estimator, sensing, progress, label)

    def _run(self, estimator: Estimator, sensing: Sensing, progress: Progress, label: str) -> Outcome:
        target, dim = sensing.target, len(sensing.target)
        state = MatrixIterate(*estimator.start(dim), np.zeros_like(sensing.z0), np.nan, np.inf)
        traces: dict[str, list[float]] = {name: [] for name in ("V", "Lambda", "m", "q")}
        for iteration in range(1, self.iterations + 1):
            state = iterate(estimator, sensing, state, self.damping)
            traces["V"].append(state.V)
            traces["Lambda"].append(state.Lambda)
            traces["m"].append(float(np.diag(state.S) @ target / dim))
            traces["q"].append(float((state.S**2).sum() / dim))
            if not np.isfinite(traces["q"][-1]):
                raise FloatingPointError(f"message passing diverged in iteration {iteration}; try damping=0.5")
            progress.message(f"{label}: iteration {iteration} of {self.iterations}")
        values: dict[str, float | np.ndarray] = {name: trace[-1] for name, trace in traces.items()}
        values |= {f"{name}_trace": np.array(trace) for name, trace in traces.items()}
        values |= spectral_observables(state.S, target, estimator.model.target.spikes)
        values |= estimator.errors(sensing, state)
        period = f"of its norm per iteration after {self.iterations} iterations"
        status, words = of_movement("S still moves by", state.change, self.tolerance, period, "increase iterations")
        return Outcome(values, status, words=words)


class MatrixIterate(NamedTuple):
    """The estimate S, its variance V, the last f (n, N), Lambda, and the relative change of S in an undamped step."""

    S: np.ndarray
    V: float
    f: np.ndarray
    Lambda: float
    change: float


def iterate(estimator: Estimator, sensing: Sensing, state: MatrixIterate, share: float) -> MatrixIterate:
    """Return the state after one iteration, in which ``share`` is the weight of the new S and V."""
    S, V, z0 = state.S, state.V, sensing.z0
    dim = len(S)
    r = sensing.coordinates(S) - V * state.f
    f, slope = estimator.respond(z0, r, V)
    Lambda = 2 * len(z0) / dim**2 * slope
    values, vectors = np.linalg.eigh(2 / dim * sensing.gathered(f) + Lambda * S)
    shrunk, V_new = estimator.denoise(values, Lambda)
    step = share * ((vectors * shrunk) @ vectors.T - S)
    change = np.linalg.norm(step) / share / max(np.linalg.norm(S + step), 1e-300)
    # If the penalty removes all of S, V vanishes; at the lower bound of V, f is the slope of the loss.
    V_new = max(share * V_new + (1 - share) * V, _NO_RESPONSE)
    return MatrixIterate(S + step, V_new, f, Lambda, float(change))


class Estimator(abc.ABC):
    """Steps of message passing in which regularised training and Bayes-optimal learning differ (a base class)."""

    def __init__(self, model: AttentionIndex) -> None:
        self.model = model

    @abc.abstractmethod
    def start(self, dim: int) -> tuple[np.ndarray, float]:
        """Return the initial S (dim, dim) and V, before any data are used."""

    @abc.abstractmethod
    def respond(self, z0: np.ndarray, r: np.ndarray, V: float) -> tuple[np.ndarray, float]:
        """Return the scores f (n, N), and minus the mean over samples of sum_a df_a/dr_a."""

    @abc.abstractmethod
    def denoise(self, D: np.ndarray, Lambda: float) -> tuple[np.ndarray, float]:
        """Return the eigenvalues of S, from the eigenvalues D (d,) of Theta, and V."""

    @abc.abstractmethod
    def errors(self, sensing: Sensing, state: MatrixIterate) -> dict[str, float]:
        """Return errors of the predictions by name, such as ``test_error``."""

    def output(self, r: np.ndarray, beta: float) -> np.ndarray:
        """Return predictions (n, k) at coordinates r (n, N), scaled so that the error is the squared distance."""
        if self.model.activation == "linear":  # ||h - h'||_F^2 = 2 |z - z'|^2
            return np.sqrt(2) * r
        T = self.model.tokens
        h = beta * (r @ logit_matrix(T).T).reshape(-1, T, T)
        A = np.exp(h - h.max(2, keepdims=True))
        return (A / A.sum(2, keepdims=True)).reshape(len(r), -1)

    def target_output(self, z0: np.ndarray) -> np.ndarray:
        """Return the labels at coordinates z0 (n, N) of the target, scaled like :meth:`output`."""
        return self.output(z0, self.model.teacher_beta)


class PenalisedTraining(Estimator):
    """Minimisation of the squared error with a penalty: f = (p - r) / V, p the proximal point.

    The penalty lt d Tr S on positive semi-definite matrices, lt = sqrt(width_ratio) weight_decay, cuts off eigenvalues:
    T = (D - 2 lt)_+ / Lambda. The penalty weight_decay d Tr S^2 shrinks them: T = D / (Lambda + 4 weight_decay).
    """

    def __init__(self, problem: Training) -> None:
        super().__init__(problem.model)
        self.factorized, self.decay = is_factorized(problem), decay_of_matrix(problem)

    def start(self, dim: int) -> tuple[np.ndarray, float]:
        return np.zeros((dim, dim)), FIRST_RESPONSE

    def respond(self, z0: np.ndarray, r: np.ndarray, V: float) -> tuple[np.ndarray, float]:
        if self.model.activation == "linear":  # the error is 2 |z0 - p|^2
            stiffness = 1 / (V + 0.25)
            return stiffness * (z0 - r), z0.shape[1] * stiffness
        from ..loss.proximal import proximal_points

        p, trace = proximal_points(self.model.tokens, self.model.beta, self.model.teacher_beta, z0, r, V)
        return (p - r) / V, float((z0.shape[1] - trace).mean() / V)

    def denoise(self, D: np.ndarray, Lambda: float) -> tuple[np.ndarray, float]:
        if not self.factorized:
            slope = 1 / (Lambda + 4 * self.decay)
            return slope * D, (1 + 1 / len(D)) * slope
        kept = D - 2 * self.decay
        shrunk, slope = np.maximum(kept, 0) / Lambda, (kept > 0) / Lambda
        apart = abs(D[:, None] - D) > 1e-12
        ratio = np.where(apart, (shrunk[:, None] - shrunk) / np.where(apart, D[:, None] - D, 1), slope[:, None])
        return shrunk, float((ratio.sum() + np.trace(ratio)) / len(D) ** 2)

    def errors(self, sensing: Sensing, state: MatrixIterate) -> dict[str, float]:
        S, dim = state.S, len(state.S)
        train = self._error(sensing.z0, sensing.coordinates(S))
        penalty = self.decay * float(np.trace(S) if self.factorized else (S**2).sum()) / dim
        loss = len(sensing.z0) / dim**2 * train + penalty
        return {"test_error": self._error(*sensing.fresh(S)), "train_error": train, "train_loss": loss}

    def _error(self, z0: np.ndarray, r: np.ndarray) -> float:
        return float(((self.target_output(z0) - self.output(r, self.model.beta)) ** 2).sum(1).mean())


class PosteriorMean(Estimator):
    """The posterior mean: f = (z0 - r) / (V + noise/2), T = x - (2/Lambda) Re g(x) with x = D / Lambda.

    g is the Stieltjes transform of the spectrum of S_0 + GOE / sqrt(Lambda), whose density mu gives V = 1/Lambda -
    (4 pi^2 / (3 Lambda^2)) int mu^3. V + noise/2 predicts the variance of z0 - r. If the measured variance is larger,
    it is used instead: at small d the error falls more slowly, and at exact recovery V falls without limit.
    """

    def start(self, dim: int) -> tuple[np.ndarray, float]:
        mean = self.model.target.mean
        return mean * np.eye(dim), self.model.target.mean_square - mean**2

    def respond(self, z0: np.ndarray, r: np.ndarray, V: float) -> tuple[np.ndarray, float]:
        stiffness = 1 / max(V + self.model.noise / 2, ((z0 - r) ** 2).mean(), _RESOLVED)
        return stiffness * (z0 - r), float(z0.shape[1] * stiffness)

    def denoise(self, D: np.ndarray, Lambda: float) -> tuple[np.ndarray, float]:
        convolution = self.model.target.convolution(1 / np.sqrt(Lambda))
        x = D / Lambda
        V = 1 / Lambda - 4 * np.pi**2 / (3 * Lambda**2) * convolution.cube()
        return x - 2 / Lambda * np.real(convolution.stieltjes(x)), float(V)

    def errors(self, sensing: Sensing, state: MatrixIterate) -> dict[str, float]:
        """Return the error of the mean label, by two independent estimates to avoid the bias of finitely many draws."""
        z0, r = sensing.fresh(state.S)
        spread = np.sqrt(state.V + self.model.noise / 2)
        count = 2 * _POSTERIOR_DRAWS
        draws = np.split(sobol_normals(len(r), count * r.shape[1], streams.POSTERIOR_DRAWS), count, axis=1)
        y = self.target_output(z0)
        first, second = (
            y - np.mean([self.target_output(r + spread * draw) for draw in half], axis=0)
            for half in (draws[::2], draws[1::2])
        )
        return {"test_error": float((first * second).sum(1).mean())}


def _theory(problem: Problem) -> TrainingTheory | AttentionIndexTheory:
    theory = getattr(problem, "theory", None)
    if not isinstance(theory, TrainingTheory | AttentionIndexTheory):
        model = getattr(problem, "model", None)
        raise TypeError(
            "MatrixAMP runs on RiskMinimization(AttentionIndex(...)) and BayesOptimal(AttentionIndex(...)), got "
            f"{type(problem).__name__} of {type(model).__name__}"
        )
    return theory


def _estimator(theory: TrainingTheory | AttentionIndexTheory) -> Estimator:
    return PenalisedTraining(theory.problem) if isinstance(theory, TrainingTheory) else PosteriorMean(theory.model)
