"""The channel: what one observation says about the indices.

Given the prior Z ~ N(omega, V) per token and an output y = g(Z), a channel returns log Z_out, the posterior mean and
the posterior covariance of Z in one pass. Everything else follows without differentiating numerically:

    g_out = V^{-1} (E[Z|y] - omega),      d g_out / d omega = V^{-1} Cov[Z|y] V^{-1} - V^{-1} (x) I_M.

Troiani et al., arXiv:2502.00901, eqs. (9) and (89); their eq. (12) prints E[Z|y], another normalisation.

Channels work in a token basis of their own choice (an orthonormal rotation of iid Gaussian tokens changes nothing).

Equations si-evidence, si-gout, si-jacobian of docs/theory/sequence_index.md.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import ndtri

from ...numerics.quadrature import Estimate
from ..models.rank_one import array_namespace
from .row_symmetry import RowSymmetry

#: Least median of the effective number of draws of a batch; below it the weights are not to be trusted.
LEAST_EFFECTIVE_SAMPLES = 30.0
#: A sample with fewer effective draws is done again with so many lists. Few effective draws pull the posterior
#: covariance down, the more the rarer the sample, and rare samples carry E|G|^2: with nothing done again, that of the
#: first of three layers is 17 % too small where the last layer is almost known.
ENOUGH_EFFECTIVE_SAMPLES = 64.0
#: And where that bias counts, for channels with at least four times as many draws. It takes three times as long: E|G|^2
#: of the second of three layers, where the others are learned, is then low by 0.4(4) % instead of 2.7(8) %.
MANY_EFFECTIVE_SAMPLES = 256.0


class Posterior(NamedTuple):
    """Posterior of the indices of a batch of n samples (P indices, M tokens).

    Attributes
    ----------
    log_evidence : array (n,)
        log Z_out as a density of the observation (both signs of the pre-activation counted).
    shift : array (n, P, M)
        E[Z|y] - omega.
    covariance : array (n, P, M, P, M)
        Cov[Z|y].
    effective_samples : array (n,) or None
        Kish's effective number of draws, where the posterior comes from weighted draws.
    """

    log_evidence: Any
    shift: Any
    covariance: Any
    effective_samples: Any = None


class ScoreSquares(NamedTuple):
    """What averages over diagonal overlaps need of the posteriors of n nodes; nodes come last.

    Attributes
    ----------
    log_evidence : array (n,)
        As in :class:`Posterior`.
    moments : array (P, n)
        Whose average is E|g_l|^2.
    curvatures : array (P, n)
        |G_ll|_F^2.
    """

    log_evidence: np.ndarray
    moments: np.ndarray
    curvatures: np.ndarray


#: Posterior of fixed observations, of omega (n, P, M) and V (P, P).
PreparedPosterior = Callable[[Any, Any], Posterior]


def score(posterior: Posterior, V: Any) -> Any:
    """g_out (n, P, M) for the prior covariance V (P, P)."""
    xp = array_namespace(posterior.shift)
    return xp.linalg.inv(V) @ posterior.shift


def score_jacobian(posterior: Posterior, V: Any) -> Any:
    """D g_out[p,m] / d omega[q,k], an array (n, P, M, P, M), symmetric under (p,m) <-> (q,k)."""
    xp = array_namespace(posterior.shift)
    precision = xp.linalg.inv(V)
    tokens = posterior.shift.shape[-1]
    n, P = posterior.shift.shape[:2]
    size = P * tokens
    whole = xp.kron(precision, xp.eye(tokens, dtype=precision.dtype))
    matrices = whole @ posterior.covariance.reshape(n, size, size) @ whole - whole
    return matrices.reshape(n, P, tokens, P, tokens)


@dataclass(frozen=True)
class Accuracy:
    """How well a posterior is computed; a channel reads what concerns it. ``dataclasses.replace`` changes a field.

    Parameters
    ----------
    seed : int
        Which of the independent lists of draws to use, where there are any.
    draws : int, optional
        Length of the list, for all samples alike. By default the channel's own, and longer ones for samples with few
        effective draws.
    enough : float
        Effective draws of a sample below which they are few.
    fineness : float
        Of the adaptive cubature of two layers: twice the distance of nodes, in units of the local width of the
        integrand. 2 gives 1e-4 to 1e-3 of the posterior standard deviation in the mean; 1.3 gives 1e-5 to 4e-4.
    cut : float
        Of the same: cells whose integrand is below exp(-cut) of the peak are dropped.
    rough : bool
        Of the same: cells are larger, are dropped more readily and have fewer nodes where little is. With a fineness of
        3 and a cut of 7 a sample is off by a percent, an average by 1e-3, in half the time.
    numbers : array of int, optional
        Numbers of the samples of a batch, by default 0, 1, ...: where a posterior comes from draws, a sample takes
        those of its number, whatever else is in the batch.
    """

    seed: int = 0
    draws: int | None = None
    enough: float = ENOUGH_EFFECTIVE_SAMPLES
    fineness: float = 1.3
    cut: float = 12.0
    rough: bool = False
    numbers: np.ndarray | None = field(default=None, compare=False)


DEFAULT_ACCURACY = Accuracy()


class Averages(NamedTuple):
    """Averages at one overlap, one row per independent randomisation of the nodes.

    Attributes
    ----------
    second_moment : array (randomisations, P, P)
        E[g_out g_out^T], summed over tokens.
    log_evidence : array (randomisations,)
        E log Z_out, as a density of the output y.
    curvature : array (randomisations, P)
        f_l = E |G_ll|_F^2, G = d g_out / d omega: an unlearned index l is unstable where alpha f_l > 1.
    """

    second_moment: np.ndarray
    log_evidence: np.ndarray
    curvature: np.ndarray


class Correction(NamedTuple):
    """What better posteriors change in averages that were taken with rough ones.

    One row per randomisation, of nodes other than those of the averages: with both, rows scatter by both errors.

    Attributes
    ----------
    second_moment, curvature : arrays (randomisations, P, P) and (randomisations, P)
        Factors.
    log_evidence : array (randomisations,)
        What is added.
    """

    second_moment: np.ndarray
    log_evidence: np.ndarray
    curvature: np.ndarray

    @classmethod
    def between(cls, rough: Averages, better: Averages) -> Correction:
        """That of averages at one overlap on the same nodes."""
        factors = (_ratio(getattr(better, name), getattr(rough, name)) for name in ("second_moment", "curvature"))
        second_moment, curvature = factors
        return cls(second_moment, better.log_evidence - rough.log_evidence, curvature)

    def applied(self, averages: Averages) -> Averages:
        """Averages near the overlap of the correction, corrected."""
        return Averages(
            averages.second_moment * self.second_moment,
            averages.log_evidence + self.log_evidence,
            averages.curvature * self.curvature,
        )


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """One where there is nothing but rounding: what an index that is not learned has of E[g g^T]."""
    some = abs(below) > 1e-12
    return np.where(some, above, 1.0) / np.where(some, below, 1.0)


#: Share of what is added against a bias that counts as an error.
HALF_WRONG = 0.5


class Averager(abc.ABC):
    """Callable V -> Averages: the means over data of one channel at overlap Q = I - V."""

    #: Relative error of a deterministic average, beyond the scatter of randomisations.
    accuracy: float = 1e-9

    @property
    def uncorrected(self) -> Self | None:
        """The same without what is added against a bias; None where nothing is."""
        return None

    @abc.abstractmethod
    def __call__(self, V: np.ndarray) -> Averages: ...


class OperatorAverager(Averager):
    """An averager that knows the growth of small overlaps in any direction too: what a matrix overlap asks for."""

    #: Posteriors come from draws, so that averages scatter around zero where they vanish.
    stochastic: bool = False

    @abc.abstractmethod
    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """E[g g^T] and the operator F on a subspace, one row per randomisation.

            F_ab = <B_a, F(B_b)>,     F(X)_{ij} = sum_{k,l,m,n} E[G_{ik,mn} X_{kl} G_{jl,mn}],      G = d g_out/d omega.

        Parameters
        ----------
        V : array (P, P)
        frame : array (P, d)
            Orthonormal columns: g and G are taken along them.
        basis : array (b, d, d)
            Orthonormal symmetric matrices B_a between which the operator is taken.

        Returns
        -------
        moments : array (randomisations, d, d)
        operators : array (randomisations, b, b)
        """


class Channel(abc.ABC):
    """What state evolution and message passing need to know of a model."""

    indices: int
    tokens: int
    #: Number r of independent real outputs: the mean rank of the link's differential (0: discrete or noisy outputs).
    outputs: float
    #: Every index row may change its sign on its own, so that overlaps stay diagonal.
    diagonal: bool = False
    #: The posterior comes from a list of draws that ``Accuracy.seed`` chooses. Two seeds are independent: products of
    #: the two are unbiased, squares of one are not.
    stochastic: bool = False
    #: Fields omega that averages take to one observation, a power of two: more where it costs more than a field.
    fields: int = 1
    #: And by how many times as many where averages shall be good, a power of two.
    more_fields: int = 1
    #: Draws per sample, where there are any.
    draws: int = 0
    #: Number of standard normals of observation noise per sample that :meth:`observe` adds (0: noiseless).
    noises: int = 0
    #: Block of the data on which each row acts, integers (P,): rows of different blocks have no overlap. None: all on
    #: the same.
    groups: np.ndarray | None = None
    #: The curvature at zero overlap is exact, good enough to serve as the known mean of a control variate.
    curvature_is_control: bool = False
    #: :meth:`draw_indices` folds symmetries, so that its nodes are not iid normals.
    folds_symmetries: bool = False
    #: Accuracy of posteriors in averages that are corrected by better ones on few nodes. None: nothing is gained by it.
    rough_accuracy: Accuracy | None = None
    #: Averages over several sets of nodes may be taken at the same time: they hold little memory, and no accelerator.
    concurrent: bool = False
    #: Output shown in place of the model's own, see :meth:`with_output`.
    _shown: Callable[[Any], Any] | None = None

    @property
    def cost(self) -> int:
        """By how much fewer nodes state evolution takes, a power of two: one posterior may take milliseconds."""
        return 1

    @property
    def overlap_mask(self) -> np.ndarray:
        """Ones (P, P) where an overlap may differ from zero."""
        return np.eye(self.indices) if self.diagonal else self.same_part

    @property
    def same_part(self) -> np.ndarray:
        """Ones (P, P) for rows that act on the same part of the data."""
        groups = np.zeros(self.indices, int) if self.groups is None else np.asarray(self.groups)
        return (groups[:, None] == groups).astype(float)

    @property
    def careful_enough(self) -> float | None:
        """``Accuracy.enough`` where the bias of few draws counts; None where more of them cannot be asked for."""
        return MANY_EFFECTIVE_SAMPLES if self.stochastic and self.draws >= 4 * MANY_EFFECTIVE_SAMPLES else None

    @property
    def symmetry(self) -> RowSymmetry:
        """Exchanges and changes of signs of index rows that outputs do not show, as far as they are known."""
        return RowSymmetry(np.eye(self.indices)[None])

    @property
    def output_symmetry(self) -> RowSymmetry:
        """That of the outputs, whatever posteriors make of it."""
        return self.symmetry

    @abc.abstractmethod
    def observe(self, Z: Any, noise: Any = None) -> Any:
        """The observation of index matrices Z (n, P, M), in the channel's token basis.

        ``noise``, standard normals (n, ``noises``), is that of the observations; ignored where ``noises`` is zero, and
        by default chosen by the channel, always the same for the same indices.
        """

    def recovery_bound(self, frame: np.ndarray) -> float:
        """The alpha above which full overlap in the directions of a frame (P, p), all that is visible, is stable."""
        return frame.shape[1] / self.outputs

    @abc.abstractmethod
    def posterior(self, observation: Any, omega: Any, V: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        """Posterior of Z given the observation (n, ...), omega (n, P, M) and V (P, P) or (n, P, P)."""

    def prepared(self, observation: Any, Z: Any, accuracy: Accuracy = DEFAULT_ACCURACY) -> PreparedPosterior:
        """The posterior of fixed observations as a function of omega and V, for averages that ask for it many times.

        A channel computes here, once, what does not depend on the prior. Z (n, P, M) are the true indices: at every
        overlap the posterior is to be found around them. Of f n fields omega, f at a time belong to one observation.
        """
        return lambda omega, V: self.posterior(
            np.repeat(observation, len(omega) // len(observation), axis=0), omega, V, accuracy
        )

    def score_squares(
        self, observation: Any, Z: np.ndarray, noise: np.ndarray, V: np.ndarray, shares: np.ndarray, accuracy: Accuracy
    ) -> ScoreSquares | None:
        """All that averages need of the nodes, in one pass, at a diagonal V; None: it is made of posteriors.

        The fields are Q Z + sqrt(Q V) noise. E|g_l|^2 has two estimators, |g_l|^2 and -tr G_ll; ``shares`` (P,) are
        those of the second.
        """
        return None

    @abc.abstractmethod
    def model_output(self, Z: Any) -> Any:
        """The output y (n, ...) of the model for which the channel was made, without noise."""

    def output(self, Z: Any) -> Any:
        """The output y (n, ...) whose squared error is reported: the model's own, unless another one is shown."""
        return self.model_output(Z) if self._shown is None else self._shown(Z)

    def with_output(self, output: Callable[[Any], Any]) -> Self:
        """The same channel with another output, a function of Z (n, P, M).

        Observations and posteriors stay as they are.
        """
        changed = copy.copy(self)
        changed._shown = output
        return changed

    def log_output_volume(self, observation: Any) -> Any:
        """Log |dy / d observation|: turns the density of the observation into that of y."""
        return np.zeros(observation.shape[0])

    @property
    def volume_error(self) -> float:
        """Standard error of the mean of :meth:`log_output_volume`; zero where this mean needs no draws."""
        return 0.0

    def visible(self, frame: np.ndarray) -> np.ndarray | None:
        """Return orthonormal columns (P, p): the directions in the span of ``frame`` (P, d) that the output depends on.

        None where only averages show which directions these are.
        """
        return None

    def curvature_at_zero(self) -> Estimate | None:
        """f_l = E|G_ll|_F^2 of every index (P,) at zero overlap, G = d g_out / d omega.

        None where it is not known without sampling posteriors of the channel. Index l is unstable where alpha f_l > 1
        (Troiani et al., arXiv:2502.00901, eqs. (15) and (16)).
        """
        return None

    def exact_averager(self) -> Averager | None:
        """Averages over data by deterministic quadrature; None where they must be sampled."""
        return None

    def in_single_precision(self) -> Self:
        """The same channel computing in float32 where it has a program for that, else itself."""
        return self

    def draw_indices(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Z ~ N(0, I) as (n, P, M) and importance weights, from uniforms (n, P M) in (0, 1).

        A channel with symmetries folds them here (and says so by ``folds_symmetries``): the integrands of state
        evolution have them too.
        """
        return ndtri(uniforms).reshape(-1, self.indices, self.tokens), np.ones(len(uniforms))

    def draw_nodes(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Z, the noise of omega ~ N(0, I) of the same shape, and weights, from uniforms (n, 2 P M) in (0, 1).

        The first coordinates of a Sobol sequence are the most even: a channel may give them to what matters
        most.
        """
        size = self.indices * self.tokens
        Z, weights = self.draw_indices(uniforms[:, :size])
        return Z, ndtri(uniforms[:, size:]).reshape(Z.shape), weights
