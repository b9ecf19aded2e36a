"""The interface of a channel: the posterior of a sample's indices Z given its output.

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

from ...numerics.arrays import Array, OneKind
from ...numerics.quadrature import Estimate
from ..models.rank_one import array_namespace
from .row_symmetry import RowSymmetry
from .tools.random_lists import hashed_normals

#: Smallest accepted median over a batch of the effective number of draws; below it the posteriors are refused.
LEAST_EFFECTIVE_SAMPLES = 30.0
#: A sample with fewer effective draws is computed again with more lists of draws. Few effective draws bias the
#: posterior covariance downwards, more so for rarer samples, and rare samples dominate E|G|^2: without longer lists,
#: E|G|^2 of the first of three layers is 17 % too small where the last layer is almost known.
ENOUGH_EFFECTIVE_SAMPLES = 64.0
#: A larger limit for averages in which that bias counts, for channels with at least four times as many draws. It takes
#: three times as long; E|G|^2 of the second of three layers, with the others learned, is then low by 0.4(4) % instead
#: of 2.7(8) %.
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
    """Squared scores g_out of P indices at n nodes; averages at diagonal overlaps are means over the nodes.

    Attributes
    ----------
    log_evidence : array (n,)
        As in :class:`Posterior`.
    moments : array (P, n)
        Estimates of E|g_l|^2, one per node; g_l (M,) is row l of g_out.
    curvatures : array (P, n)
        |G_ll|_F^2, with G_ll = d g_l / d omega_l.
    """

    log_evidence: np.ndarray
    moments: np.ndarray
    curvatures: np.ndarray


#: Posterior of fixed observations as a function of omega (n, P, M) and V (P, P).
PreparedPosterior = Callable[[Any, Any], Posterior]


def score(posterior: Posterior, V: Array) -> Any:
    """Return g_out = V^{-1} (E[Z|y] - omega), an array (n, P, M), for the prior covariance V (P, P)."""
    xp = array_namespace(posterior.shift)
    return xp.linalg.inv(V) @ posterior.shift


def score_jacobian(posterior: Posterior, V: Array) -> Any:
    """Return d g_out[p,m] / d omega[q,k], (n, P, M, P, M), symmetric under (p,m) <-> (q,k), for prior covariance V."""
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
    """Accuracy of a posterior; a channel reads the fields that concern it. ``dataclasses.replace`` changes a field.

    Parameters
    ----------
    seed : int
        Number of the independent list of draws, for channels with draws.
    draws : int, optional
        Length of the list, equal for all samples. By default the channel's own length, and longer lists for samples
        with few effective draws.
    enough : float
        A sample with fewer effective draws is computed again with longer lists.
    fineness : float
        Twice the distance of nodes in the adaptive cubature of two layers, in units of the local width of the
        integrand. The mean has an error of 1e-4 to 1e-3 posterior standard deviations at 2, of 1e-5 to 4e-4 at 1.3.
    cut : float
        That cubature drops cells whose integrand is below exp(-cut) of its peak.
    rough : bool
        Whether that cubature takes larger cells, drops more of them, and puts fewer nodes on cells of small mass. With
        fineness 3 and cut 7 a sample has an error of one percent and an average of 1e-3, in half the time.
    numbers : array of int, optional
        Numbers of the samples of a batch, by default 0, 1, ... The draws of a sample depend on its number alone, not
        on the other samples of the batch.
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
    """Difference between averages with accurate posteriors and averages with rough posteriors.

    One row per randomisation. The corrected averages have other nodes, so that corrected rows scatter by the errors of
    both.

    Attributes
    ----------
    second_moment, curvature : arrays (randomisations, P, P) and (randomisations, P)
        Factors, accurate over rough.
    log_evidence : array (randomisations,)
        Accurate minus rough.
    """

    second_moment: np.ndarray
    log_evidence: np.ndarray
    curvature: np.ndarray

    @classmethod
    def between(cls, rough: Averages, better: Averages) -> Correction:
        """Return the correction from rough and accurate averages at one overlap on the same nodes."""
        factors = (_ratio(getattr(better, name), getattr(rough, name)) for name in ("second_moment", "curvature"))
        second_moment, curvature = factors
        return cls(second_moment, better.log_evidence - rough.log_evidence, curvature)

    def applied(self, averages: Averages) -> Averages:
        """Return rough ``averages`` with this correction; valid near the overlap at which it was computed."""
        return Averages(
            averages.second_moment * self.second_moment,
            averages.log_evidence + self.log_evidence,
            averages.curvature * self.curvature,
        )


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return above / below entry by entry; one where |below| <= 1e-12 is rounding, as for an unlearned index."""
    some = abs(below) > 1e-12
    return np.where(some, above, 1.0) / np.where(some, below, 1.0)


#: Share of a correction of a bias that counts as the error of that correction.
HALF_WRONG = 0.5


class Averager(abc.ABC):
    """Callable V (P, P) -> :class:`Averages`: means over data for one channel, at posterior variance V = I - Q."""

    #: Relative error of a deterministic average, in addition to the scatter of randomisations.
    accuracy: float = 1e-9

    #: Whether posteriors come from draws: averages whose exact value is zero then scatter around zero.
    stochastic: bool = False

    @property
    def uncorrected(self) -> Self | None:
        """The averager without its correction of a bias; None if it has no such correction."""
        return None

    @abc.abstractmethod
    def __call__(self, V: np.ndarray) -> Averages: ...

    def along_a_path(self, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function V (P, P) -> E[g g^T] (P, P), for calls in which only masked ``rows`` (P,) of V change."""
        return lambda V: self(V).second_moment.mean(0)

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return E[g g^T] and the operator F on a subspace, one row per randomisation.

            F_ab = <B_a, F(B_b)>,     F(X)_{ij} = sum_{k,l,m,n} E[G_{ik,mn} X_{kl} G_{jl,mn}],      G = d g_out/d omega.

        Parameters
        ----------
        V : array (P, P)
        frame : array (P, d)
            Orthonormal columns; g and G are projected on them.
        basis : array (b, d, d)
            Orthonormal symmetric matrices B_a, the basis in which F is expressed.

        Returns
        -------
        moments : array (randomisations, d, d)
        operators : array (randomisations, b, b)
        """
        raise NotImplementedError(f"{type(self).__name__} is for overlaps that are diagonal")


class Channel(abc.ABC):
    """Base class of channels: all that state evolution and message passing ask of a model."""

    indices: int
    tokens: int
    #: Number r of independent real outputs: the mean rank of the link's differential (0: discrete or noisy outputs).
    outputs: float
    #: Whether each index row may change its sign on its own without changing the output: overlaps then stay diagonal.
    diagonal: bool = False
    #: Whether the posterior comes from a list of draws, chosen by ``Accuracy.seed``. Lists of two seeds are
    #: independent: the product of their posterior means is unbiased, the square of one posterior mean is not.
    stochastic: bool = False
    #: Fields omega per observation in averages, a power of two; above 1 where an observation costs more than a field.
    fields: int = 1
    #: Factor (a power of two) by which the number of fields grows for accurate averages.
    more_fields: int = 1
    #: Draws per sample; 0 for channels without draws.
    draws: int = 0
    #: Number of standard normals of observation noise per sample that :meth:`observe` adds (0: noiseless).
    noises: int = 0
    #: Block of the data on which each row acts, integers (P,): rows of different blocks have no overlap. None: all rows
    #: act on the same block.
    groups: np.ndarray | None = None
    #: Whether :meth:`curvature_at_zero` is exact, so that it can serve as the known mean of a control variate.
    curvature_is_control: bool = False
    #: Whether :meth:`draw_indices` folds symmetries, so that its nodes are not iid normals.
    folds_symmetries: bool = False
    #: Accuracy of rough posteriors, for averages that a :class:`Correction` improves. None: they would save no time.
    rough_accuracy: Accuracy | None = None
    #: Whether averages over several blocks of nodes may run at the same time: they need little memory, no accelerator.
    concurrent: bool = False
    #: Output that replaces the model's own, see :meth:`with_output`.
    _shown: Callable[[Any], Any] | None = None

    @property
    def cost(self) -> int:
        """Factor (a power of two) by which averages reduce their nodes, where one posterior takes milliseconds."""
        return 1

    @property
    def overlap_mask(self) -> np.ndarray:
        """Matrix (P, P) with ones where an overlap may differ from zero."""
        return np.eye(self.indices) if self.diagonal else self.same_part

    @property
    def same_part(self) -> np.ndarray:
        """Matrix (P, P) with ones for pairs of rows that act on the same block of the data."""
        groups = np.zeros(self.indices, int) if self.groups is None else np.asarray(self.groups)
        return (groups[:, None] == groups).astype(float)

    @property
    def quick_posterior(self) -> Callable[..., Posterior]:
        """The fastest posterior that is accurate enough for message passing, called like :meth:`posterior`."""
        return self.posterior

    @property
    def careful_enough(self) -> float | None:
        """Value of ``Accuracy.enough`` for averages that need a small bias; None if ``draws`` is too small for it."""
        return MANY_EFFECTIVE_SAMPLES if self.stochastic and self.draws >= 4 * MANY_EFFECTIVE_SAMPLES else None

    @property
    def symmetry(self) -> RowSymmetry:
        """Signed permutations of index rows that leave outputs unchanged, as far as they are known."""
        return RowSymmetry(np.eye(self.indices)[None])

    @property
    def output_symmetry(self) -> RowSymmetry:
        """Signed permutations of rows that leave outputs unchanged, even if computed posteriors are not symmetric."""
        return self.symmetry

    @abc.abstractmethod
    def observe(self, Z: OneKind, noise: Any = None) -> OneKind:
        """Return the observations of index matrices Z (n, P, M), in the channel's token basis.

        ``noise`` (n, ``noises``) are the standard normals of the observation noise; unused where ``noises`` is zero.
        The library hands them over in every call. A subclass needs no default.
        """

    def own_noise(self, Z: Array) -> np.ndarray:
        """Return standard normals (n, ``noises``), independent for different index matrices Z (n, P, M), else equal."""
        return hashed_normals(np.asarray(Z, float).reshape(len(Z), -1), self.noises)

    def recovery_bound(self, frame: np.ndarray) -> float:
        """Return the alpha above which full overlap is stable, by default p / ``outputs``.

        The p orthonormal columns of ``frame`` (P, p) span all directions on which the output depends.
        """
        return frame.shape[1] / self.outputs

    @abc.abstractmethod
    def posterior(self, observation: Array, omega: Array, V: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> Posterior:
        """Return the posterior of Z given observations (n, ...), prior mean omega (n, P, M), covariance V (P, P).

        V may also differ between samples, (n, P, P).
        """

    def prepared(self, observation: Array, Z: Array, accuracy: Accuracy = DEFAULT_ACCURACY) -> PreparedPosterior:
        """Return a function (omega (f n, P, M), V (P, P)) -> posterior, for n fixed observations (n, ...).

        Every f consecutive fields omega belong to one observation. A channel computes here, once, everything that does
        not depend on the prior. Z (n, P, M) are the true indices, around which the posterior at every overlap lies.
        """
        return lambda omega, V: self.posterior(
            np.repeat(observation, len(omega) // len(observation), axis=0), omega, V, accuracy
        )

    def score_squares(
        self,
        observation: np.ndarray,
        Z: np.ndarray,
        noise: np.ndarray,
        V: np.ndarray,
        shares: np.ndarray,
        accuracy: Accuracy,
    ) -> ScoreSquares | None:
        """Return squared scores at n nodes for a diagonal V (P, P); None: averages call :meth:`posterior` instead.

        The observations (n, ...) belong to true indices Z (n, P, M). The fields are omega = Q Z + sqrt(Q V) noise, with
        Q = I - V and standard normals ``noise`` (n, P, M). E|g_l|^2 has two estimators, |g_l|^2 and -tr G_ll;
        ``shares`` (P,) are the weights of the second.
        """
        return None

    def model_output(self, Z: OneKind) -> OneKind:
        """Return the output y (n, ...) of the model for which the channel was made, without noise."""
        return self.observe(Z, np.zeros((len(Z), self.noises)))

    def output(self, Z: OneKind) -> OneKind:
        """Return the output y (n, ...) whose squared error is reported: the model's, or that of :meth:`with_output`."""
        return self.model_output(Z) if self._shown is None else self._shown(Z)

    def with_output(self, output: Callable[[Array], Array]) -> Self:
        """Return a copy of the channel with another output, a function of Z (n, P, M).

        Observations and posteriors stay as they are.
        """
        changed = copy.copy(self)
        changed._shown = output
        return changed

    def log_output_volume(self, observation: Array) -> Array:
        """Return log |dy / d observation| (n,): log density of an observation minus this is the log density of y."""
        return np.zeros(observation.shape[0])

    @property
    def volume_error(self) -> float:
        """Standard error of the mean of :meth:`log_output_volume`; zero if that mean needs no draws."""
        return 0.0

    def visible(self, frame: np.ndarray) -> np.ndarray | None:
        """Return orthonormal columns (P, p): the directions in the span of ``frame`` (P, d) that the output depends on.

        None where these directions are known from averages only.
        """
        return None

    def curvature_at_zero(self) -> Estimate | None:
        """Return f_l = E|G_ll|_F^2 of every index (P,) at zero overlap, with G = d g_out / d omega.

        None where f_l is known only by sampling posteriors of the channel. Index l is unstable where alpha f_l > 1
        (Troiani et al., arXiv:2502.00901, eqs. (15) and (16)).
        """
        return None

    def exact_averager(self) -> Averager | None:
        """Return the averages over data by deterministic quadrature; None where they must be sampled."""
        return None

    def in_single_precision(self) -> Self:
        """Return the channel that computes in float32, or the channel itself if it has no program for that."""
        return self

    def draw_indices(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Z ~ N(0, I) as (n, P, M) and importance weights, from uniforms (n, P M) in (0, 1).

        A channel may fold its symmetries here (and then sets ``folds_symmetries``): the integrands of state evolution
        have the same symmetries.
        """
        return ndtri(uniforms).reshape(-1, self.indices, self.tokens), np.ones(len(uniforms))

    def draw_nodes(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Z, the noise of omega ~ N(0, I) of the same shape, and weights, from uniforms (n, 2 P M) in (0, 1).

        The first coordinates of a Sobol sequence are the most uniform: a channel may use them for the variables that
        matter most.
        """
        size = self.indices * self.tokens
        Z, weights = self.draw_indices(uniforms[:, :size])
        return Z, ndtri(uniforms[:, size:]).reshape(Z.shape), weights
