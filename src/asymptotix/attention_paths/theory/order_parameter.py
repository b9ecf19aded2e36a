"""Minimum of the action over the order parameter, by accelerated closed-form steps that always descend.

At the current U_0, ln det(K + T I) lies below its tangent tr(D U) + const, Y^T (K + T I)^-1 Y below
tr(U^-1 U_0 R U_0) + const, and the entropy below its value at the deeper layers' current order parameters. The sum of
these bounds,

    tr(Q U) - ln det U + tr(U^-1 W),    Q = (1/s_1) I (x) (U^(2))^-1 + D / N_1,    W = U_0 R U_0 / N_1,

times r_1, touches S at U_0 and is least at the positive definite root of U Q U - U = W; N_1 = r_1 N is the width that
the first layer reads from. A step to this root lowers S, keeps U positive definite and needs no step size.

Where an evaluation of S is costly, the search avoids most of them: it begins on drafts of S, which are cheaper
approximations, and near the minimum it takes Newton steps with the curvature of `curvature`, as long as they succeed.

The minimum is that of Tiberi et al., arXiv:2405.15926, eq. (11). The paper finds it by Adam (appendix E), which may
leave the cone of positive definite matrices.

Equation ap-step of docs/theory/attention_paths.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...core.status import Status
from ...numerics import checks, interrupts
from ...numerics.anderson import Anderson
from ...numerics.threads import one_blas_thread
from .action import Action, ActionValue
from .curvature import newton_step
from .elimination import Matrix, riccati
from .log_coordinates import from_log, to_log

MEMORY = 20
"""Past steps that the acceleration combines."""

STRIDE = 8.0
"""Number of plain steps taken at once where the iteration drifts (S is not convex); undone if S rises."""

MAX_MOVE = 3.0
"""Largest change of an entry of log U that an accelerated step may make."""

PATIENCE = 30
"""Number of successive plain steps without a fall of S or of the gradient that ends the search (rounding)."""

NEWTON = 0.1, 0.003
"""Scaled gradients below which Newton steps are taken: at first, and after one failure. After two failures none are."""

GROWTH = 2.0
"""A Newton step at which S rises, or after which the gradient is larger by this factor, is a failure."""

DRAFT_PATIENCE = 8
"""Evaluations of a draft in which the gradient may not fall below its least before the search on it ends."""

SAFETY = 4.0
"""Factor between the next accelerated step and the bound on the error of U. In 108 searches over 2 to 8 paths, ended at
gradients of 1e-4 to 1e-8, U was off by 3.2 times that step at most (the median: 1.0), and by 14 times the plain one."""


@dataclass(frozen=True)
class OrderParameter:
    """Minimiser of the action.

    Attributes
    ----------
    U
        Order parameter, shape (d C, d C) with the output fastest, symmetric positive definite; its entry
        ((pi c), (pi' c')) is the posterior mean of Veff^{pi c} . Veff^{pi' c'} / N_1 for the effective weights
        Veff^{pi c} of a path and an output.
    inner
        The deeper layers' U^(2), ..., U^(L+1), as matrices.
    action
        S at the minimum.
    evaluations
        Number of evaluations of the action.
    gradient_norm
        max |U^1/2 (dS/dU) U^1/2|, which does not depend on the scale of U.
    error
        Bound on the numerical error of U, entry by entry.
    action_error
        Bound on the numerical error of S.
    status
        CONVERGED where gradient_norm fell below the tolerance, INACCURATE where rounding stopped the search before,
        NOT_CONVERGED at the limit of evaluations.
    words
        Sentence on how the search ended.
    """

    U: Matrix
    inner: list[Matrix]
    action: float
    evaluations: int
    gradient_norm: float
    error: Matrix
    action_error: float
    status: Status
    words: str

    @property
    def converged(self) -> bool:
        """Whether gradient_norm fell below the tolerance."""
        return self.status.converged


def monotone_step(U: Matrix, action: Action, value: ActionValue | None = None) -> Matrix:
    """Return U after one plain step, at which S never rises. `value` is `action.at(U)`, computed if not given."""
    value = action.at(U) if value is None else value
    W = U @ value.R @ U / action.first_width
    return riccati(value.prior_slope + value.D / action.first_width, W, -1.0)


def minimise(
    action: Action, start: ArrayLike | None = None, tolerance: float = 1e-8, max_steps: int = 400
) -> OrderParameter:
    """Minimise S over U by `monotone_step` or `newton_step`, with Anderson acceleration on log U.

    An accelerated step at which S rises is undone and replaced by the monotone step. At infinite width the minimum is
    the Gaussian-process limit, a multiple of the identity.

    Parameters
    ----------
    action
        The action S to minimise.
    start
        First U, symmetric positive definite; the Gaussian-process limit if left out.
    tolerance
        Accepted max |U^1/2 (dS/dU) U^1/2|.
    max_steps
        Most evaluations of the action.
    """
    tolerance = checks.positive("tolerance", tolerance)
    max_steps = checks.integer("max_steps", max_steps, 1)
    if np.isinf(action.width):
        # Stationary by construction: the start plays no part, and the gradient is zero up to rounding.
        U = action.prior_order_parameter
        value = action.at(U)
        nothing = np.zeros_like(U)
        return OrderParameter(
            U, value.inner, value.value, 1, 0.0, nothing, 0.0, Status.CONVERGED, "Gaussian-process limit"
        )
    U = action.prior_order_parameter if start is None else _checked_start(start, action.size)
    with one_blas_thread(action.examples * action.outputs):
        for accuracy, draft in action.drafts(coarse=start is None):
            U = _drafted(draft, U, max(accuracy, tolerance), max_steps)
            del draft  # it takes half the memory of the features
        return _accelerated(action, U, tolerance, max_steps)


def scaled_gradient(U: Matrix, gradient: Matrix) -> float:
    """Return max |U^1/2 G U^1/2|, the scale-free size of the gradient G at U."""
    values, vectors = np.linalg.eigh(U)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return float(np.abs(root @ gradient @ root).max())


def _drafted(draft: Action, U: Matrix, tolerance: float, max_steps: int) -> Matrix:
    """Return the minimiser of a draft; if it cannot be computed, return U, the start of a search without drafts."""
    try:
        return _accelerated(draft, U, tolerance, max_steps, DRAFT_PATIENCE).U
    except (np.linalg.LinAlgError, ArithmeticError):
        return U


def _accelerated(
    action: Action, U: Matrix, tolerance: float, max_steps: int, patience: float = np.inf
) -> OrderParameter:
    value, evaluations = action.at(U), 1
    accelerated = {step: _AcceleratedSteps(step, _anderson(action)) for step in (monotone_step, newton_step)}
    step, failures = monotone_step, 0
    lowest, idle, least, stalled, norm = np.inf, 0, np.inf, 0, np.inf
    while True:
        interrupts.check()
        before, norm = norm, scaled_gradient(U, value.gradient)
        lowest, idle = min(lowest, norm), 0 if norm < lowest else idle + 1
        failures += step is newton_step and norm > GROWTH * before
        step = newton_step if value.spread is not None and _is_trusted(norm, failures) else monotone_step
        following, move = accelerated[step].propose(U, action, value)
        found = (U, value, evaluations, norm, move)
        if norm <= tolerance:
            return _report(*found, Status.CONVERGED, Status.CONVERGED.sentence)
        if evaluations >= max_steps or idle >= patience:
            return _report(*found, Status.NOT_CONVERGED, f"not converged after {evaluations} evaluations")
        trial, trial_value, evaluations = following, _try(action, following, value), evaluations + 1
        if trial_value is None:
            accelerated[step].anderson.retreat()
            failures += step is newton_step
            # A plain step lowers S, even where rounding of the last digits of S hides that.
            step, trial = monotone_step, monotone_step(U, action, value)
            trial_value, evaluations = _computed(action, trial, value), evaluations + 1
            fell = trial_value is not None and trial_value.value < value.value - action.rounding * abs(value.value)
            stalled = 0 if fell or norm < 0.9 * least else stalled + 1
            least = min(least, norm)
        if trial_value is None or stalled > PATIENCE:
            words = "stopped by rounding: the gradient cannot fall further in double precision"
            return _report(*found, Status.INACCURATE, words)
        U, value = trial, trial_value


def _is_trusted(norm: float, failures: int) -> bool:
    """Return whether a Newton step is taken at the scaled gradient ``norm``, after ``failures`` failed Newton steps."""
    return failures < len(NEWTON) and norm < NEWTON[failures]


def _anderson(action: Action) -> Anderson:
    return Anderson(action.size * (action.size + 1) // 2, MEMORY, MAX_MOVE, STRIDE)


class _AcceleratedSteps(NamedTuple):
    """Steps of one kind, and an acceleration that combines steps of this kind only."""

    step: Callable[[Matrix, Action, ActionValue], Matrix]
    anderson: Anderson

    def propose(self, U: Matrix, action: Action, value: ActionValue) -> tuple[Matrix, float]:
        """Return the next U, and the step length in log U from which the distance to the minimum is estimated."""
        point = to_log([U])
        move = to_log([self.step(U, action, value)]) - point
        following = self.anderson.advance(point, move)
        (proposed,) = from_log(following, [action.size])
        # A plain step is shorter than the distance to the minimum; a Newton step has about that length.
        short = SAFETY if self.step is monotone_step else 1.0
        return proposed, float(max(np.linalg.norm(following - point), short * np.linalg.norm(move)))


def _try(action: Action, U: Matrix, before: ActionValue) -> ActionValue | None:
    """Return the action at U, or None where it is higher than before or cannot be computed."""
    value = _computed(action, U, before)
    fell = value is not None and value.value <= before.value + action.rounding * (1.0 + abs(before.value))
    return value if fell else None


def _computed(action: Action, U: Matrix, before: ActionValue) -> ActionValue | None:
    try:
        return action.at(U, before.inner)
    except (np.linalg.LinAlgError, ArithmeticError):
        return None


def _report(
    U: Matrix, value: ActionValue, evaluations: int, norm: float, step: float, status: Status, words: str
) -> OrderParameter:
    """Return the result at U; an error x of log U, estimated by ``step``, changes U_ij by at most x sqrt(U_ii U_jj)."""
    root = np.sqrt(np.diag(U))
    eps = np.finfo(float).eps
    error = np.expm1(SAFETY * (step + eps)) * np.outer(root, root)
    off = float((np.abs(value.gradient) * error).sum() + SAFETY * eps * abs(value.value))
    return OrderParameter(U, value.inner, value.value, evaluations, norm, error, off, status, words)


def _checked_start(start: ArrayLike, size: int) -> Matrix:
    U = checks.array_of_shape("start", start, (size, size))
    if np.abs(U - U.T).max() > 1e-9 * np.abs(U).max():
        raise ValueError(f"start must be symmetric, got max |U - U^T| = {np.abs(U - U.T).max():.3g}")
    U = 0.5 * (U + U.T)
    least = np.linalg.eigvalsh(U).min()
    if not least > 0:
        raise ValueError(f"start must be positive definite, got smallest eigenvalue {least:.3g}")
    return U
