"""Equations of a training problem: its loss, the nodes on which the loss is averaged, and its penalty on the spectrum.

The penalties are those of Boncoraglio et al., arXiv:2509.24914, eqs. (22) and (20), which lacks a factor d. Losses
other than the squared one belong to the generic setting of Appendix B.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..loss.loss_average import LossAverage, QuadraticLinear, SquaredSoftmax
from ..loss.quadrature_nodes import LossNodes
from ..model import AttentionIndex
from ..penalties.spectral_estimate import Elementwise, Kink, NuclearNorm, Penalty, SpectralPenalty, SquaredNorm
from ..streams import NODE_SCRAMBLINGS
from .prediction import best_multiple
from .state_evolution import TrainingEvolution

#: Gauss-Hermite orders of the fine nodes: the first gives the results, its difference from the second their error.
_ORDERS = (28, 22)
#: Coarsest nodes, which distinguish branches of fixed points, and coarse nodes, on which the dynamics are followed. The
#: first of each pair is for two tokens with the squared loss, the second for all other problems.
_SCOUTS = LossNodes(order=6), LossNodes(count=2**8)
_FOLLOWERS = LossNodes(order=10), LossNodes(count=2**9)
#: Numbers of Sobol nodes per scrambling, tried in turn at a tolerance above ``_LOOSE``, else only the last. With fewer
#: nodes the numerical errors are larger.
_COUNTS, _LOOSE = (2**12, 2**13, 2**14), 5e-4


class Training(Protocol):
    """Interface of a training problem for the theory; see :class:`asymptotix.RiskMinimization`."""

    @property
    def model(self) -> AttentionIndex: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def width_ratio(self) -> float: ...

    @property
    def parameterization(self) -> str: ...

    @property
    def loss(self) -> str | Callable[..., Any]: ...

    @property
    def penalty(self) -> Callable[..., Any] | None: ...

    def function(self, field: str) -> Any:
        """Return the value of a field for computations: the snapshot of a user's function, or the value itself."""
        ...


def is_factorized(problem: Training) -> bool:
    """Return whether S = W W^T / sqrt(m d) is learned; otherwise it is any symmetric S."""
    return problem.parameterization == "factorized"


def power_of_two(size: float) -> float:
    """Return the power of two nearest to a size. Units that are powers of two need few compiled programs."""
    return float(2.0 ** np.round(np.log2(size)))


def relative_decay(problem: Training) -> float:
    """Return :func:`decay_of_matrix` in natural units: the penalty on an S of the target's size, per typical loss."""
    size = problem.model.noisy_signal
    loss = size if problem.model.activation == "linear" else 1.0
    return decay_of_matrix(problem) * (float(np.sqrt(size)) if is_factorized(problem) else size) / loss


def decay_of_matrix(problem: Training) -> float:
    """Return the strength of the penalty: sqrt(width_ratio) weight_decay for d Tr S, weight_decay for d |S|_F^2."""
    scale = np.sqrt(problem.width_ratio) if is_factorized(problem) else 1.0
    return float(scale * problem.weight_decay)


class TrainingEquations:
    """The equations of one problem on any quadrature nodes. Losses on nodes are kept between calls."""

    def __init__(self, problem: Training) -> None:
        self.problem, self.model = problem, problem.model
        self._losses: dict[LossNodes | None, LossAverage] = {}
        self._least_errors: dict[LossNodes | None, float] = {}
        self._best_multiple: float | None = None  # on the nodes of few()

    @cached_property
    def unit(self) -> float:
        """Unit of loss and penalty in the equations, in user's units: a power of two; 1 for built-in losses."""
        if not callable(self.problem.loss):
            return 1.0
        from ..loss.own_functions import unit_of_loss

        return unit_of_loss(self.problem.function("loss"), self.model)

    @property
    def penalty(self) -> Penalty:
        """The penalty on the spectrum, with its strength in the unit :attr:`unit`."""
        if self.problem.penalty is not None:
            strength = self.problem.weight_decay / self.unit
            return _user_penalty(self.problem.function("penalty"), strength, is_factorized(self.problem))
        strength = decay_of_matrix(self.problem) / self.unit
        return NuclearNorm(strength, self.problem.width_ratio) if is_factorized(self.problem) else SquaredNorm(strength)

    @property
    def in_closed_form(self) -> bool:
        """Whether the averages of the loss have a closed form, so that no nodes are needed."""
        return self.model.activation == "linear" and self.problem.loss == "squared"

    @property
    def in_two_equations(self) -> bool:
        """Whether the problem reduces to the two equations of :mod:`.two_equations`, for delta and eps."""
        return self.in_closed_form and is_factorized(self.problem) and self.problem.penalty is None

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in S, for a user's loss as far as trials show: then there is one fixed point."""
        if callable(self.problem.loss):
            from ..loss.own_functions import try_loss

            return try_loss(self.problem.function("loss"), self.model)
        return self.in_closed_form or self.problem.loss == "cross_entropy"

    @property
    def smooth(self) -> bool:
        """Whether Gauss-Hermite nodes are available: for two tokens and the squared loss."""
        return self.model.tokens == 2 and self.problem.loss == "squared"

    @property
    def on_two_token_nodes(self) -> bool:
        """Whether Gauss-Hermite nodes are used: for two tokens, a softmax and the squared loss."""
        return self.smooth and self.model.activation == "softmax"

    def evolution(self, nodes: LossNodes | None = None) -> TrainingEvolution:
        """Return state evolution on the given nodes; give None where the loss is known in closed form."""
        if nodes not in self._losses:
            self._losses[nodes] = self._loss(nodes)
        loss, model = self._losses[nodes], self.model
        least = lambda: self._least_error(nodes)  # noqa: E731 (a search, made on demand only)
        return TrainingEvolution(loss, self.penalty, model.target, model.noisy_signal, least, nodes, self.unit)

    def share_nodes_with(self, other: TrainingEquations) -> None:
        """Let ``other`` use the losses that are kept here on their nodes, if its problem has the same loss."""
        mine, theirs = self._loss_key, other._loss_key
        if mine == theirs:
            other._losses = self._losses
            if self.model.noisy_signal == other.model.noisy_signal and self.model.signal == other.model.signal:
                other._least_errors, other._best_multiple = self._least_errors, self._best_multiple

    @property
    def _loss_key(self) -> tuple[object, ...]:
        """Parameters on which a loss on nodes depends."""
        model, own = self.model, (self.problem.function("loss"), self.unit, self._length)
        return model.tokens, model.activation, model.beta, model.teacher_beta, *own

    @property
    def _length(self) -> float:
        """Distance in the pre-activation over which a user's loss may change its shape, a power of two."""
        model = self.model
        return power_of_two(float(np.sqrt(model.noisy_signal)) if model.activation == "linear" else 1 / model.beta)

    def _least_error(self, nodes: LossNodes | None) -> float:
        if nodes not in self._least_errors:
            if self._best_multiple is None:
                self._best_multiple = best_multiple(self.few().loss, self.model)[0]
            self._least_errors[nodes] = best_multiple(self._losses[nodes], self.model, near=self._best_multiple)[1]
        return self._least_errors[nodes]

    def _loss(self, nodes: LossNodes | None) -> LossAverage:
        model, loss = self.model, self.problem.function("loss")
        if self.in_closed_form:
            return QuadraticLinear(model.tokens)
        if nodes is None:
            raise ValueError("nodes must be given where the loss is not known in closed form, got None")
        if loss == "squared":
            return SquaredSoftmax(
                model.tokens, model.beta, model.teacher_beta, order=nodes.order, count=nodes.count, seed=nodes.seed
            )
        if nodes.count is None:
            raise ValueError(f"nodes of order={nodes.order} are for the squared loss: give count and seed")
        from ..loss.generic_loss import GenericLoss
        from ..loss.losses import cross_entropy, in_unit, teacher_output

        own = in_unit(loss, self.unit) if callable(loss) else cross_entropy(model.beta)
        convex = not callable(loss)  # trials do not prove that a user's loss is convex
        return GenericLoss(
            model.tokens, own, teacher_output(model), convex=convex, length=self._length, count=nodes.count,
            seed=nodes.seed,
        )  # fmt: skip

    def scouts(self) -> TrainingEvolution:
        """Return state evolution on the coarsest nodes that distinguish branches of fixed points."""
        return self._on_few(_SCOUTS)

    def few(self) -> TrainingEvolution:
        """Return state evolution on the coarse nodes on which the dynamics are followed before the fine nodes."""
        return self._on_few(_FOLLOWERS)

    def _on_few(self, nodes: tuple[LossNodes, LossNodes]) -> TrainingEvolution:
        if self.in_closed_form:
            return self.evolution()
        return self.evolution(nodes[0] if self.smooth else nodes[1])

    def node_counts(self, tolerance: float) -> list[int | None]:
        """Return the node counts to try in turn until the error meets the tolerance; [None] where there is one rule."""
        if self.in_closed_form or self.smooth:
            return [None]
        return [*_COUNTS] if tolerance > _LOOSE else [_COUNTS[-1]]

    def fine_nodes(self, tolerance: float) -> LossNodes | None:
        """Return the nodes of the first of the :meth:`replicas`; None where the loss is known in closed form."""
        if self.in_closed_form:
            return None
        if self.smooth:
            return LossNodes(order=_ORDERS[0])
        return LossNodes(count=self.node_counts(tolerance)[0], seed=NODE_SCRAMBLINGS[0])

    def replicas(self, count: int | None) -> list[TrainingEvolution]:
        """Return the equations on several sets of nodes; the spread of results is their numerical error.

        The sets are scramblings of ``count`` Sobol nodes, or with None two Gauss-Hermite orders or one closed form.
        """
        if self.in_closed_form:
            return [self.evolution()]
        if count is None:
            return [self.evolution(LossNodes(order=order)) for order in _ORDERS]
        return self.randomised(count)

    def randomised(self, count: int = _COUNTS[-1]) -> list[TrainingEvolution]:
        """Return the equations on ``count`` Sobol nodes, once per scrambling in NODE_SCRAMBLINGS."""
        return [self.evolution(LossNodes(count=count, seed=seed)) for seed in NODE_SCRAMBLINGS]


def _user_penalty(function: Callable[..., Any], strength: float, positive: bool) -> SpectralPenalty:
    """Return the penalty ``strength`` r(t), r = ``function``, on positive semi-definite S if ``positive``."""
    from ..loss.own_functions import penalty_functions

    own = penalty_functions(function)

    def times(f: Elementwise) -> Elementwise:
        return lambda t: strength * f(t)

    kinks = [Kink(t, strength * before, strength * after) for t, before, after in own.kinks]
    return SpectralPenalty(times(own.value), times(own.slope), times(own.curvature), positive=positive, kinks=kinks)
