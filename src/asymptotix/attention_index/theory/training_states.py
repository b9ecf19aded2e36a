"""States of the state evolution of training: order parameters, their conjugates, an iterate, and a solution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from ...core.status import Status
from ..loss.loss_average import LossAverages
from ..penalties.spectral_estimate import MatrixEstimate


class _ThreeNumbers(NamedTuple):
    m: float
    q: float
    Sigma: float


class OrderParameters(_ThreeNumbers):
    """Order parameters: m = Tr(S S_0)/d, q = Tr(S^2)/d and the response Sigma of S to its field.

    ``apart`` is q - m^2/Q_0, if it is known more accurately than from m and q: their difference loses its digits where
    S is nearly a multiple of S_0.
    """

    apart: float | None

    def __new__(cls, m: float, q: float, Sigma: float, apart: float | None = None) -> Self:
        found = super().__new__(cls, m, q, Sigma)
        found.apart = apart
        return found

    @classmethod
    def of_estimate(cls, estimate: MatrixEstimate) -> OrderParameters:
        """Return m, q, Sigma and ``apart`` of an estimate of S."""
        return cls(estimate.m, estimate.q, estimate.Sigma, estimate.apart)

    @classmethod
    def uninformed(cls, signal: float) -> OrderParameters:
        """Return a start where S has a thousandth of the size of S_0 and a cosine of 0.001; ``signal`` is Q_0."""
        return cls(1e-6 * signal, 1e-6 * signal, signal)

    @classmethod
    def partly_informed(cls, signal: float) -> OrderParameters:
        """Return a start where S has 0.9 times the size of S_0 and a cosine of 0.78 with it; ``signal`` is Q_0."""
        return cls(0.7 * signal, 0.8 * signal, signal)

    @classmethod
    def informed(cls, signal: float, scale: float = 1.0) -> OrderParameters:
        """Return a start where S has ``scale`` times the size of S_0 and a cosine of 0.999; ``signal`` is Q_0."""
        return cls(0.999 * scale * signal, scale**2 * signal, 0.1 * scale**2 * signal)


class Fields(NamedTuple):
    """Conjugate order parameters: the data act on S as a field mhat S_0 + sqrt(qhat) GOE, of curvature Sigmahat."""

    mhat: float
    qhat: float
    Sigmahat: float


@dataclass(frozen=True)
class Iterate:
    """One evaluation of the map of state evolution, at the order parameters ``parameters``.

    Attributes
    ----------
    parameters, fields : OrderParameters, Fields
        Order parameters, and the fields that follow from averages of the loss there.
    estimate : MatrixEstimate
        Estimate of S at ``fields``, with the next order parameters.
    residual : float
        Largest change of a variable (logarithms, a logit) by one more iteration.
    points : array (n, N) or None
        Proximal points of the n samples: descents at similar order parameters are faster from there.
    status : Status
    words : str
        Details of the status of an iteration that ended here; may be empty.
    several : array of bool (n,) or False
        Samples at which several minima of the proximal map were found.
    """

    parameters: OrderParameters
    fields: Fields
    estimate: MatrixEstimate
    residual: float
    points: np.ndarray | None
    status: Status = Status.CONVERGED
    words: str = ""
    several: np.ndarray | bool = False

    @property
    def converged(self) -> bool:
        """Whether the residual fell below the tolerance."""
        return self.status.converged

    @property
    def next_parameters(self) -> OrderParameters:
        """Order parameters after one more iteration."""
        return OrderParameters.of_estimate(self.estimate)


@dataclass(frozen=True)
class TrainingSolution(Iterate):
    """The end of state evolution, normally a fixed point, with all ``averages`` of the loss."""

    averages: LossAverages = field(kw_only=True)

    def potential(self, alpha: float) -> float:
        """Return the potential Phi of :mod:`.state_evolution`, at a fixed point the training loss L/d^2."""
        (m, q, Sigma), (mhat, qhat, Sigmahat) = self.parameters, self.fields
        legendre = 0.25 * (qhat * Sigma + 2 * mhat * m - Sigmahat * q)
        return legendre + alpha * self.averages.moreau + self.estimate.envelope
