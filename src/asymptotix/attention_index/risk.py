"""Regularised training of single-head attention: the problem class for :func:`solve`, :func:`thresholds` and others.

Boncoraglio et al., arXiv:2509.24914, eq. (2), and eq. (20) with the factor d that its penalty lacks. Eq. (1) defines
S = W W^T / sqrt(m d).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..core.definitions.observable import Observable
from ..core.describing.fingerprints import SAMPLE_LENGTH, condensed, far_points, fixed_points, program_digest
from ..core.gradient import Derivative
from ..core.problem import Outcome, Problem
from ..core.progress import Say, quietly
from ..core.specification import numeric_fields, with_fields
from ..numerics import checks
from ..numerics.iteration import continuation_steps
from ..numerics.precision import double_precision
from ..numerics.programs.snapshot import Snapshot, snapshot
from .model import AttentionIndex
from .training_definitions import TRAINING_DEFINITIONS

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike

    from ..core.progress import Progress
    from ..core.result import Result
    from .spectra.learned import LearnedSpectrum
    from .theory.training_theory import Starts, TrainingTheory

#: Largest alpha that is accepted; above it the noise of the field is below the rounding errors of the spectrum.
MOST_SAMPLES = 1e12
#: Names of the thresholds that have equations of their own, and of those found by following the field along alpha.
COUNTING_THRESHOLDS = ("interpolation", "exact_recovery")
OUTLIER_THRESHOLDS = ("outlier", "outlier_until", "outlier_again")
PARAMETERIZATIONS = ("factorized", "full")
LOSSES = ("squared", "cross_entropy")
INTEGER_FIELDS = ("tokens", "dim", "rank")


@dataclass(frozen=True)
class RiskMinimization(Problem):
    """Full training of one attention layer on attention-indexed data, in the limit n = alpha d^2.

    The learner S = W W^T / sqrt(m d), W in R^{d x m} ("factorized"), or a symmetric S ("full"), minimises

        L = sum_mu loss(y_mu, h_mu(S)) + weight_decay |W|_F^2,      or      ... + d weight_decay |S|_F^2.

    Parameters
    ----------
    model : AttentionIndex
    weight_decay : float
        lambda >= 0; zero is the limit 0+.
    width_ratio : float
        m/d of the factorised learner. Above the learned ``rank`` only the product sqrt(width_ratio) weight_decay
        matters. A narrower learner keeps the largest eigenvalues: a heuristic, which the status mentions.
    parameterization : "factorized" or "full"
    loss : "squared", "cross_entropy" or callable
        Squared error |y - A|_F^2 of the attention matrix, cross entropy -sum y log A, or a JAX function loss(y, h) of
        the target's output and the learner's pre-activation, both T x T.
    penalty : callable, optional
        A convex JAX function r(t). The penalty d weight_decay Tr r(S) replaces the norms above, on positive
        semi-definite S ("factorized") or on all symmetric S ("full").

    Notes
    -----
    *Contents of a result*. S_0 is the target, Q_0 = Tr(S_0^2)/d. ``<name>_err`` is the numerical error of ``<name>``;
    full definitions are in the attributes, for example ``result.rank.attrs``.

    - ``test_error``: E|y - A|_F^2 on fresh data, noise included; ``train_error``: this error per training sample.
      For another loss both are values of that loss. Between losses only ``estimation_error`` can be compared.
    - ``excess_error``: test_error minus its value for the best multiple of S_0, see :func:`population_optimum`.
    - ``train_loss``: L/d^2, penalty included. ``estimation_error``: |S - S_0|_F^2/d = Q_0 - 2m + q.
    - ``rank``: share of the eigenvalues of S that are not zero (in an experiment: beyond 0.01).
    - ``m``: Tr(S S_0)/d; ``q``: Tr(S^2)/d; ``Sigma``: the response of S; ``mhat``, ``Sigmahat``, ``qhat``: their
      conjugate fields.
    - ``delta``, ``eps``, ``scale``: the eigenvalues of S are scale (x - eps)_+, x from the target's law convolved with
      a semicircle of variance delta^2.
    - ``potential``: Phi, equal to train_loss at a fixed point. ``replicon``: below 1 replica symmetry is stable.
      ``jump_weight``: share of the data on which the proximal map jumps; above 1e-3 the numbers are unproven.

    For a :class:`Spiked` target, ``result.outliers()`` describes the outliers of its spikes, as a dataset over
    ``spike`` (docs/theory/outliers.md); ``result.spectrum()`` is the law of the other eigenvalues of S at one point.

    Thresholds are listed in :func:`thresholds`; observables of experiments in :class:`Adam` and :class:`MatrixAMP`.

    *Starts* of :func:`solve`. "uninformed": S has a thousandth of the size of S_0, and a cosine of 0.001 with it.
    "informed": S has the size of S_0, and a cosine of 0.999 with it. If the loss is not convex, each of these two also
    tries the other one. If they lead to two branches, the branch of lower training loss is reported, because it
    contains the minimiser, and the status says so. "continued": the largest alpha starts from an S of 0.9 times the
    size of S_0 and a cosine of 0.78 with it, and each other point from the solution at the next larger alpha.
    "continued", and a start given as (m, q, Sigma), follow one branch even if it is not the lowest. Except for
    "continued", the points of a call do not depend on one another.

    *Tolerance* of :func:`solve`. The tolerance bounds the numerical errors of test_error, train_error, train_loss,
    estimation_error and rank, relative to the number or to its natural size, whichever is larger. The natural size is
    Q_0 for estimation_error; one for the rank and for the built-in losses of a softmax; Q_0' for the linear channel;
    and for a loss of your own its change between h = 0 and an h as large as the target's. If the tolerance is not met,
    more nodes are used. If they do not suffice, or if an error exceeds the number itself, the status is "inaccurate".
    The status is "not valid" for a replicon of one or more, or if the proximal map jumps on a thousandth of the data.
    For a learner narrower than its rank the status says "narrow: heuristic".

    *Units*. Results do not depend on units. Each of these changes leaves the problem the same: loss and weight_decay
    times c; penalty times c and weight_decay over c; eigenvalues of the target times s, noise times s^2, beta and
    target_beta over s, and weight_decay over s ("factorized") or s^2 ("full"). For "factorized", beta and weight_decay
    times c divide S by c.

    The equations, each with the function that computes it, are in docs/theory/attention_index.md.

    Examples
    --------
    >>> import asymptotix as asx
    >>> task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)
    >>> theory = asx.solve(asx.RiskMinimization(task, weight_decay=0.01), alpha=1.0)
    >>> round(float(theory.test_error), 3)
    0.102
    """

    controls: ClassVar[tuple[str, ...]] = ("alpha",)
    readouts: ClassVar[tuple[str, ...]] = ("spectrum", "outliers")
    named_like_observables: ClassVar[tuple[str, ...]] = ("rank",)

    model: AttentionIndex
    weight_decay: float = 0.01
    width_ratio: float = 1.0
    parameterization: str = "factorized"
    loss: str | Callable[..., Any] = "squared"
    penalty: Callable[..., Any] | None = None
    snapshots: tuple[tuple[str, Snapshot], ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        if not isinstance(self.model, AttentionIndex):
            raise TypeError(f"model must be an AttentionIndex, got {checks.named(self.model)}")
        object.__setattr__(self, "weight_decay", float(checks.non_negative("weight_decay", self.weight_decay)))
        object.__setattr__(self, "width_ratio", float(checks.positive("width_ratio", self.width_ratio)))
        checks.one_of("parameterization", self.parameterization, PARAMETERIZATIONS)
        if not callable(self.loss) and not (isinstance(self.loss, str) and self.loss in LOSSES):
            accepted = ", ".join(map(repr, LOSSES))
            raise ValueError(f"loss must be one of {accepted}, or a JAX function loss(y, h), got {self.loss!r}")
        if self.penalty is not None and not callable(self.penalty):
            raise ValueError(f"penalty must be a convex JAX function r(t), or None, got {self.penalty!r}")
        if self.model.activation == "hardmax":
            raise NotImplementedError(
                "activation='hardmax' has no gradient to train with; softmax and linear are covered"
            )
        if self.model.activation == "linear" and (self.model.beta, self.model.teacher_beta) != (1.0, 1.0):
            raise ValueError("beta and target_beta must be 1 with activation='linear', where they only rescale S")
        if self.model.activation == "linear" and self.loss == "cross_entropy":
            raise ValueError(
                "loss='cross_entropy' needs outputs that are probabilities: activation='softmax', got 'linear'"
            )
        if self.weight_decay == 0 and (self.loss != "squared" or self.penalty is not None):
            raise NotImplementedError("weight_decay=0 is covered for the squared loss without a penalty of your own")
        if self.model.activation == "softmax" or callable(self.loss):
            self.model.refuse_too_many_tokens()
        self._try_functions()

    def _try_functions(self) -> None:
        """Store snapshots of the user's loss and penalty and try them, so that errors occur here, not in ``solve``."""
        if not callable(self.loss) and self.penalty is None:
            return
        from .loss.own_functions import try_loss, try_penalty

        shapes = {"loss": [(self.model.tokens, self.model.tokens)] * 2, "penalty": [()]}
        own = {name: getattr(self, name) for name in shapes if callable(getattr(self, name))}
        made = tuple((name, snapshot(function, *shapes[name])) for name, function in own.items())
        object.__setattr__(self, "snapshots", made)
        if callable(self.loss):
            try_loss(self.function("loss"), self.model)
        if self.penalty is not None:
            size = float(np.sqrt(self.model.signal or self.model.noisy_signal))
            try_penalty(self.function("penalty"), positive=self.parameterization == "factorized", size=size)

    @cached_property
    def theory(self) -> TrainingTheory:
        """The solver of the equations of this problem; it keeps its quadrature nodes between calls."""
        from .theory.training_theory import TrainingTheory

        return TrainingTheory(self)

    def function_values(self, field: str) -> np.ndarray | None:
        """Return 16 values of the user's penalty or 8 of the loss at fixed points, for files; None if built-in."""
        T = self.model.tokens
        found = self._own_at(field, fixed_points(16) if field == "penalty" else fixed_points(2, 8, T, T))
        return None if found is None else condensed(found)

    def function_sample(self, field: str) -> np.ndarray | None:
        """Return 512 values of the user's loss or penalty at points in the target's units; None if built-in."""
        T = self.model.tokens
        points = far_points(SAMPLE_LENGTH) if field == "penalty" else fixed_points(2, SAMPLE_LENGTH, T, T)
        if field == "loss":
            points[:, 1::2] *= 2
        found = self._own_at(field, self.function_scale(field) * points)
        return None if found is None else condensed(found, SAMPLE_LENGTH)

    def function_scale(self, field: str) -> float:
        """Return a power of two near the size of the target's eigenvalues (penalty) or pre-activations (loss)."""
        size = self.model.signal if field == "penalty" else 0.0
        return float(2.0 ** np.round(0.5 * np.log2(size or self.model.noisy_signal)))

    def function_code(self, field: str) -> str | None:
        T, function = self.model.tokens, self.function(field)
        if not callable(function):
            return None
        with double_precision():
            return program_digest(function, *([()] if field == "penalty" else [(T, T), (T, T)]))

    def _own_at(self, field: str, points: np.ndarray) -> np.ndarray | None:
        """Return (n,) values of the user's penalty at t (n,) or loss at logits and h (2, n, T, T); None if built-in."""
        import jax

        function = self.function(field)
        if not callable(function):
            return None
        if field == "penalty":
            given: tuple[np.ndarray, ...] = (np.abs(points) if self.parameterization == "factorized" else points,)
        else:
            y, h = (0.5 * (x + x.swapaxes(-1, -2)) for x in points)
            if self.model.activation == "softmax":
                y = np.exp(y) / np.exp(y).sum(axis=-1, keepdims=True)
            given = (y, h)
        with double_precision():
            return np.asarray(jax.vmap(function)(*given))

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys((*OUTLIER_THRESHOLDS, "outlier_eigenvalue", "outlier_overlap"), ("spike",))

    def observables(self) -> Mapping[str, Observable]:
        return TRAINING_DEFINITIONS

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        return checks.positive_grid(name, values, most=MOST_SAMPLES)

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: str | ArrayLike, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        starts = self.theory.starts(start)
        alphas = [point["alpha"] for point in points]

        def solve_at(alpha: float, starts: Starts) -> tuple[Starts | None, Outcome]:
            progress.message(f"alpha = {alpha:.4g}")
            found = self.theory.solve(alpha, starts, tolerance)
            return None if found.parameters is None else (found.parameters,), found.outcome

        if isinstance(start, str) and start == "continued":
            yield from continuation_steps(solve_at, alphas, starts, descending=True)
        else:
            yield from ((position, solve_at(alpha, starts)[1]) for position, alpha in enumerate(alphas))

    def threshold_names(self) -> Sequence[str]:
        return (*COUNTING_THRESHOLDS, *(OUTLIER_THRESHOLDS if len(self.model.target.spikes) else ()))

    def threshold_values(self, *, tolerance: float, progress: Progress, which: Sequence[str] | None = None) -> Outcome:
        asked = self.threshold_names() if which is None else which
        if not set(asked) & set(OUTLIER_THRESHOLDS):
            return self.theory.thresholds(tolerance).only(which)  # all of them: they take no time
        from .outliers.training_visibility import training_windows

        outliers = training_windows(self.theory, tolerance)
        if not set(asked) & set(COUNTING_THRESHOLDS):
            return outliers.only(which)
        counted = self.theory.thresholds(tolerance)
        words = "; ".join(part for part in (outliers.words, counted.words) if part)
        return Outcome({**counted.values, **outliers.values}, outliers.how, words=words).only(which)

    def trace(self, *, iterations: int, damping: float, **controls: float) -> Mapping[str, np.ndarray]:
        return self.theory.trace(iterations=iterations, damping=damping, **controls)

    def gradient(
        self, observable: str, field: str, *, alpha: float, tolerance: float, say: Say = quietly
    ) -> Derivative:
        """Return an observable, its derivative by ``field`` (a numeric field or "alpha"), errors and status."""
        from .theory.implicit_derivatives import value_and_derivative

        at = alpha if field == "alpha" else self._differentiable(field)

        @cache
        def shifted(theta: float) -> tuple[TrainingTheory, float]:
            if field == "alpha":
                return self.theory, theta
            theory = with_fields(self, **{field: theta}).theory
            self.theory.equations.share_nodes_with(theory.equations)
            return theory, alpha

        return value_and_derivative(
            self.theory, alpha, observable, theta=at, shifted=shifted, tolerance=tolerance, say=say
        )

    def _differentiable(self, field: str) -> float:
        """Return the value of a numeric field; raise a ValueError if there is no derivative with respect to it."""
        fields = numeric_fields(self)
        accepted = [name for name in fields if name not in INTEGER_FIELDS]
        if field not in accepted:
            raise ValueError(f"field must be alpha or one of {', '.join(sorted(accepted))}, got {field!r}")
        value = fields[field]
        if value is None:
            raise ValueError(f"{field} is not set; give it a number first")
        if value == 0:
            raise ValueError(f"{field} must not be 0, where only a one-sided derivative exists, got 0")
        return float(value)

    def outliers(self, result: Result) -> xr.Dataset:
        """Return the outliers of the target's spikes, at every point of a theory or in every run of an experiment.

        The dataset has the dimensions of the result and ``spike``. The variable ``theta`` is the spike's eigenvalue. A
        theory adds ``location`` (eigenvalue of the field), ``eigenvalue`` (of S), ``singular_value``, ``overlap``
        (squared, of the directions), ``detached`` (whether the spike is apart from the field's bulk), ``visible``
        (whether it is also an eigenvalue of S) and errors. An experiment adds ``eigenvalue``, ``singular_value`` and
        ``overlap`` of the learned eigenvector that overlaps most with the spike.
        """
        from .outliers.training_outliers import outliers_of_training

        return outliers_of_training(self, result)

    def spectrum(self, result: Result) -> LearnedSpectrum:
        """Return the law of the learned eigenvalues and singular values at one point of a theory result."""
        from .spectra.learned import LearnedSpectrum

        ds = result.ds
        if result.kind != "theory" or "delta" not in ds:
            raise ValueError(f"spectrum() belongs to a theory result; this one is of kind {result.kind!r}")
        if ds["delta"].ndim:
            raise ValueError(f"spectrum() is of one point: select {', '.join(map(str, ds['delta'].dims))} first")
        delta, eps, scale = (float(ds[name]) for name in ("delta", "eps", "scale"))
        if self.penalty is not None:
            raise ValueError("no learned law for a penalty of your own: the spectrum is offered for the built-in ones")
        if not delta > 0 or not np.isfinite(scale):
            raise ValueError(
                f"no learned law at this point (status: {ds['status'].item()}): delta = {delta}, scale = {scale}"
            )
        target, outliers = self.model.target, ()
        if len(target.spikes):
            found = self.outliers(result)
            outliers = tuple(found["eigenvalue"].values[found["visible"].values])
        law = LearnedSpectrum(
            target.convolution(delta), scale, eps, self.parameterization, outliers, target.spike_weight
        )
        if self.parameterization == "factorized" and law.rank > self.width_ratio * (1 + 1e-6):
            raise ValueError(
                f"no learned law for a learner narrower than its rank: width_ratio must be at least {law.rank:.4g}, "
                f"got {self.width_ratio:g}"
            )
        return law
