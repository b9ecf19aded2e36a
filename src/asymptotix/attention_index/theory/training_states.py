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
    """m = Tr(S S_0)/d, q = Tr(S^2)/d and the response Sigma.

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
        """Return the order parameters of an estimate."""
        return cls(estimate.m, estimate.q, estimate.Sigma, estimate.apart)

    @classmethod
    def uninformed(cls, signal: float) -> OrderParameters:
        """Return a start that knows next to nothing: S has a thousandth of the size of S_0 and a cosine of 0.001."""
        return cls(1e-6 * signal, 1e-6 * signal, signal)

    @classmethod
    def partly_informed(cls, signal: float) -> OrderParameters:
        """Return a start that knows about two thirds of the target: S has nine tenths of its size, cosine 0.78."""
        return cls(0.7 * signal, 0.8 * signal, signal)

    @classmethod
    def informed(cls, signal: float, scale: float = 1.0) -> OrderParameters:
        """Return a start at ``scale`` times the target, except for a cosine of 0.999."""
        return cls(0.999 * scale * signal, scale**2 * signal, 0.1 * scale**2 * signal)


class Fields(NamedTuple):
    """The conjugate order parameters: the field that the data exert on S."""

    mhat: float
    qhat: float
    Sigmahat: float


@dataclass(frozen=True)
class Iterate:
    """Loss side and matrix side at one point of the iteration.

    Attributes
    ----------
    parameters, fields : OrderParameters, Fields
    estimate : MatrixEstimate
        Matrix side at ``fields``.
    residual : float
        Largest change of a variable (logarithms, a logit) by one more iteration.
    points : array or None
        Proximal points: descents at a neighbouring point are faster from there.
    status : Status
    words : str
        Details of the status of an iteration that ended here; may be empty.
    several : array or False
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
    """The end of state evolution, with all averages of the loss side."""

    averages: LossAverages = field(kw_only=True)

    def potential(self, alpha: float) -> float:
        """Return the potential Phi, see :mod:`.state_evolution`."""
        (m, q, Sigma), (mhat, qhat, Sigmahat) = self.parameters, self.fields
        legendre = 0.25 * (qhat * Sigma + 2 * mhat * m - Sigmahat * q)
        return legendre + alpha * self.averages.moreau + self.estimate.envelope
