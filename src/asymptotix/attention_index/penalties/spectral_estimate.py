"""The matrix side of state evolution: a penalty on the spectrum turns the effective field into an estimate of S.

The estimate is a function of the field mhat S_0 + sqrt(qhat) GOE = mhat M, where the eigenvalues x of M follow
mu_delta, the law of S_0 freely convolved with a semicircle, delta = sqrt(qhat)/mhat. An eigenvalue x becomes

    t(x) = argmin_t [ r(t) + Sigmahat t^2/4 - mhat x t/2 ],

where d Tr r(S) is the penalty. With g the Stieltjes transform of mu_delta,

    q = E t^2,      m = E t (x - 2 delta^2 Re g),      Sigma = (2/mhat) E t Re g.

Here m is Tr(S S_0)/d. The noise contributes delta^2 times the divergence of t to E t x. This divergence is a single
integral, because the inner integral of the double one is the Hilbert transform 2 Re g.

With rho = m/Q_0 and the best estimate k = x - 2 delta^2 Re g, ``apart`` = q - m^2/Q_0 is a sum of positive terms,

    q - m^2/Q_0 = E [ rho^2 delta^2 (1 - delta^2 |g|^2) + (t - rho k)^2 ].

An estimate that is nearly right therefore keeps its relative accuracy: its squared distance from the target is
``apart`` + (Q_0 - m)^2/Q_0.

Boncoraglio et al., arXiv:2509.24914, eqs. (39), (43), (44), with the penalty divided by d, where the paper prints d^2.

Equations ai-penalty, ai-denoiser, ai-matrix, ai-full of docs/theory/attention_index.md.
Equations sc-error, sc-narrow of docs/theory/scaling.md.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from ..spectra.convolution import Array, ComplexArray, Convolution, posterior_variance
from ..targets.target import Target
from .proximal_pieces import Elementwise, PenaltySlopes, SmoothPieces, padded, proximal_map, smooth_pieces

#: Range of m/Q_0 over which the formula for m changes smoothly from one form to the other.
_HALF = 0.4, 0.6
#: Relative excess of the number of eigenvalues above a cut over the number of columns of W that counts as none.
_FITS = 1e-6
#: Number of entries of a table over pairs of eigenvalues that are in memory at a time. Larger: more memory.
_BLOCK = 2**21
#: Distance of two eigenvalues, relative to the length of the support, below which a difference quotient is replaced by
#: the derivative.
_SAME = 1e-9
#: Number of nodes after which a second quadrature rule divides a panel, fewer than the nodes of any panel, and the most
#: divisions of this kind. With fewer divisions the second rule would have panels in common with the first.
_FEWEST_NODES, _MOST_DIVIDED = 24, 200
#: Error of the cut of a narrow learner, relative to the largest eigenvalue.
_CLOSE = 1e-15


class MatrixEstimate(NamedTuple):
    """The order parameters of the estimate of S.

    Attributes
    ----------
    m, q : float
        Tr(S S_0)/d and Tr(S^2)/d.
    Sigma : float
        Response of the estimate to its field, (2/mhat) E t Re g.
    penalty : float
        Tr r(S)/d, the contribution of the penalty to the loss L/d^2.
    envelope : float
        E min_t [r(t) + Sigmahat t^2/4 - mhat x t/2], the matrix part of the potential.
    rank : float
        Share of eigenvalues that are not zero.
    apart : float
        q - m^2/Q_0, the part of q that is not along the target, from positive terms.
    left_out : float
        Share of eigenvalues that the penalty would keep but a narrow W has no column for.
    """

    m: float
    q: float
    Sigma: float
    penalty: float
    envelope: float
    rank: float
    apart: float
    left_out: float = 0.0


class Penalty(abc.ABC):
    """A rotation-invariant penalty d Tr r(S), possibly with a cone to which S belongs."""

    @abc.abstractmethod
    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        """Return the order parameters of the estimate from the field mhat S_0 + sqrt(qhat) GOE at Sigmahat."""

    def estimate_on_other_nodes(
        self, target: Target, mhat: float, qhat: float, Sigmahat: float
    ) -> MatrixEstimate | None:
        """Return :meth:`estimate` from a second quadrature rule; None where one rule is known to be accurate."""
        return None

    @abc.abstractmethod
    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        """Return eps and scale of t(x) = scale (x - eps)_+, or of scale x; nan for a t of another form."""

    @abc.abstractmethod
    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        """Return E [(t(x) - t(y))/(mhat (x - y))]^2 over two independent eigenvalues, a factor of the replicon."""


class Overlaps(NamedTuple):
    """Averages over mu_delta for an estimate t(x): m, q, response = E t Re g, ``apart`` of :class:`MatrixEstimate`."""

    m: float
    q: float
    response: float
    apart: float


def overlaps(signal: float, delta: float, nodes: tuple[Array, Array, ComplexArray], t: Array) -> Overlaps:
    """Return the averages from the values t of an estimate at the nodes (x, weight, g) of mu_delta.

    ``signal`` is Q_0.
    """
    x, weight, g = nodes
    best, left = x - 2 * delta**2 * g.real, posterior_variance(delta, g)
    if signal == 0:  # a target of zeros has no direction
        q = float(weight @ t**2)
        return Overlaps(0.0, q, float(weight @ (t * g.real)), q)
    m = float(weight @ (t * best))
    # Near Q_0 the difference Q_0 - m is more accurate than m, because weights of narrow bulks are known to a few digits
    # only. The transition between the two formulas is smooth; otherwise the iteration might cycle between them.
    share = _smooth_step((m / signal - _HALF[0]) / (_HALF[1] - _HALF[0]))
    m += share * (signal - float(weight @ (left + best * (best - t))) - m)
    along = m / signal
    apart = float(weight @ (along**2 * left + (t - along * best) ** 2))
    return Overlaps(m, apart + m**2 / signal, float(weight @ (t * g.real)), apart)


def _smooth_step(x: float) -> float:
    """Return 0 for x <= 0, 1 for x >= 1 and a cubic between, with a continuous slope."""
    x = min(max(x, 0.0), 1.0)
    return x * x * (3 - 2 * x)


class NuclearNorm(Penalty):
    """r(t) = strength t on positive semi-definite matrices: weight decay of a factor W of S = W W^T.

    t(x) = (mhat x - 2 strength)_+ / Sigmahat = scale (x - eps)_+: the first three lines of eq. (55), whose
    J(delta, eps) is int_eps (x - eps)^2 mu_delta.

    A factor with fewer columns than there are eigenvalues above eps keeps the largest ones, t(x) = scale (x - eps) for
    x above x_m with mu_delta((x_m, inf)) = width, and zero below. This is a heuristic: the constraint on the rank is
    not convex, and where x_m lies inside a bulk the replicon diverges.

    Parameters
    ----------
    strength : float
        Factor of the trace in the penalty.
    width : float
        Number of columns of the factor W divided by d.
    """

    def __init__(self, strength: float, width: float = np.inf) -> None:
        self.strength, self.width = strength, width

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        delta, (eps, scale) = np.sqrt(qhat) / mhat, self.cut_and_scale(mhat, Sigmahat)
        convolution = target.convolution(delta)
        low, left_out = narrow_cut(convolution, eps, self.width)
        x, weight, _ = nodes = convolution.nodes_cut_at(low)
        t = np.where(x > low, scale * (x - eps), 0.0)
        found = overlaps(target.mean_square, delta, nodes, t)
        penalty = self.strength * float(weight @ t)
        return MatrixEstimate(
            m=found.m,
            q=found.q,
            Sigma=2 / mhat * found.response,
            penalty=penalty,
            envelope=penalty + 0.25 * Sigmahat * found.q - 0.5 * mhat * float(weight @ (t * x)),
            rank=float(weight[x > low].sum()),
            apart=found.apart,
            left_out=left_out,
        )

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return 2 * self.strength / mhat, mhat / Sigmahat

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        convolution, eps = target.convolution(np.sqrt(qhat) / mhat), 2 * self.strength / mhat
        low, left_out = narrow_cut(convolution, eps, self.width)
        if left_out > 0 and ((convolution.edges[:, 0] < low) & (low < convolution.edges[:, 1])).any():
            return np.inf  # for a jump inside a bulk the squared quotient is not integrable
        x, weight, _ = convolution.nodes_cut_at(low)
        above = x > low
        # The quotient of (x - eps)_+ is 1 if both eigenvalues are above the cut, 0 if both are below.
        y, below = x[~above], weight[~above]
        across = 0.0
        for part in np.array_split(np.flatnonzero(above), 1 + above.sum() * len(y) // _BLOCK):
            across += float(weight[part] @ ((x[part, None] - eps) / (x[part, None] - y)) ** 2 @ below)
        return float(weight[above].sum() ** 2 + 2 * across) / Sigmahat**2


def narrow_cut(convolution: Convolution, eps: float, width: float) -> tuple[float, float]:
    """Return the cut x_m above which a factor W keeps eigenvalues, and the share in (eps, x_m] that it cannot keep.

    ``width`` is the number of columns of W divided by d. If W has a column for every eigenvalue above eps, x_m is eps.
    If the number of eigenvalues above a gap equals the number of columns, x_m is the middle of the gap.
    """
    if width >= 1:
        return eps, 0.0
    wanted = float(convolution.mass_above(eps))
    if wanted <= width * (1 + _FITS):
        return eps, 0.0
    gaps = 0.5 * (convolution.edges[:-1, 1] + convolution.edges[1:, 0])
    gaps = gaps[gaps > eps]
    masses = convolution.mass_above(gaps) if len(gaps) else gaps
    fitting = np.flatnonzero(abs(masses - width) <= _FITS * width)
    if len(fitting):
        return float(gaps[fitting[0]]), wanted - width
    low = max([eps, *gaps[masses > width]])
    high = min([float(convolution.edges[-1, 1]), *gaps[masses < width]])
    found: Any = brentq(lambda x: float(convolution.mass_above(x)) - width, low, high, xtol=_CLOSE * high)
    return float(found), wanted - width


def _inside(x: Array, bulks: Array) -> Array:
    """Return the points of x that lie inside one of the ``bulks`` (count, 2)."""
    return x[np.searchsorted(bulks.ravel(), x) % 2 == 1]


class SquaredNorm(Penalty):
    """r(t) = strength t^2 on symmetric matrices; only Q_0 of the target matters: the first three lines of eq. (66).

    The penalty of eq. (20) lacks the factor d without which it vanishes in the limit.
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        stiffness = Sigmahat + 4 * self.strength
        square = target.mean_square * mhat**2 + qhat
        q = square / stiffness**2
        m, envelope = target.mean_square * mhat / stiffness, -0.25 * square / stiffness
        return MatrixEstimate(m, q, 1 / stiffness, self.strength * q, envelope, rank=1.0, apart=qhat / stiffness**2)

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return 0.0, mhat / (Sigmahat + 4 * self.strength)

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        return 1 / (Sigmahat + 4 * self.strength) ** 2


class Kink(NamedTuple):
    """A point t at which r'(t) or r''(t) jumps, with r' just below (``before``) and just above t (``after``)."""

    t: float
    before: float
    after: float


class SpectralPenalty(Penalty):
    """A penalty Tr r(S) with convex r, on all symmetric matrices or on the positive semi-definite ones.

    Where r' jumps, t(x) stays at the kink over an interval of x. The spectrum is integrated in pieces that end at the
    ends of this interval. Fractions of eigenvalues, such as the rank, are therefore integrals, not counts of nodes.
    Where r' is steep, the spectrum is integrated in the pieces of :func:`.proximal_pieces.smooth_pieces`.

    Parameters
    ----------
    function, derivative, curvature : callable
        r(t), r'(t) and r''(t), elementwise on a NumPy array.
    positive : bool
        Whether S is confined to the positive semi-definite cone.
    kinks : sequence of Kink
        Places where r is not smooth, ascending.
    """

    def __init__(
        self,
        function: Elementwise,
        derivative: Elementwise,
        curvature: Elementwise,
        *,
        positive: bool = True,
        kinks: Sequence[Kink] = (),
    ) -> None:
        self.function, self.derivative, self.curvature, self.positive = function, derivative, curvature, positive
        if positive:  # the boundary of the cone acts like r' = -inf below zero
            at_zero = [kink.after for kink in kinks if kink.t == 0] or [float(derivative(np.zeros(1))[0])]
            kinks = [Kink(0.0, -np.inf, at_zero[0]), *(kink for kink in kinks if kink.t > 0)]
        self.kinks = tuple(kinks)
        self._slopes = PenaltySlopes(padded(derivative), padded(curvature), self.kinks)
        self._function = padded(function)

    def plateaus(self, mhat: float, Sigmahat: float) -> Array:
        """Return the intervals (kinks, 2) of x on which t(x) stays at a kink."""
        ends = [[2 * kink.before + Sigmahat * kink.t, 2 * kink.after + Sigmahat * kink.t] for kink in self.kinks]
        return np.reshape(ends, (-1, 2)) / mhat

    def denoise(self, x: np.ndarray, mhat: float, Sigmahat: float, pieces: SmoothPieces | None = None) -> np.ndarray:
        """Return the root t(x) of r'(t) + Sigmahat t/2 = mhat x/2; ``pieces`` are those of :meth:`pieces`."""
        x = np.asarray(x, float)
        if pieces is None:
            pieces = self.pieces(np.array([[x.min(), x.max()]]), mhat, Sigmahat)
        found = proximal_map(self._slopes, 0.5 * Sigmahat, 0.5 * mhat * x, pieces)
        for kink, (first, last) in zip(self.kinks, self.plateaus(mhat, Sigmahat), strict=True):
            found = np.where((first <= x) & (x <= last), kink.t, found)
        return found

    def pieces(self, bulks: Array, mhat: float, Sigmahat: float) -> SmoothPieces:
        """Return intervals of t on which t(x) is smooth, for x in the bulks (count, 2)."""
        return smooth_pieces(self._slopes, 0.5 * Sigmahat, 0.5 * mhat * bulks, self.positive)

    def estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        return self._estimate(target, mhat, qhat, Sigmahat, finer=False)

    def estimate_on_other_nodes(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> MatrixEstimate:
        return self._estimate(target, mhat, qhat, Sigmahat, finer=True)

    def _estimate(self, target: Target, mhat: float, qhat: float, Sigmahat: float, *, finer: bool) -> MatrixEstimate:
        delta = np.sqrt(qhat) / mhat
        nodes, t = self._nodes(target.convolution(delta), mhat, Sigmahat, finer=finer)
        x, weight, _ = nodes
        found = overlaps(target.mean_square, delta, nodes, t)
        penalty = float(weight @ self._function(t))
        return MatrixEstimate(
            m=found.m,
            q=found.q,
            Sigma=2 / mhat * found.response,
            penalty=penalty,
            envelope=penalty + 0.25 * Sigmahat * found.q - 0.5 * mhat * float(weight @ (t * x)),
            rank=float(weight[t != 0].sum()),
            apart=found.apart,
        )

    def _nodes(
        self, convolution: Convolution, mhat: float, Sigmahat: float, *, finer: bool = False
    ) -> tuple[tuple[Array, Array, ComplexArray], Array]:
        """Return the nodes (x, weight, g) on panels that end where t(x) is not smooth, and t at the nodes.

        With ``finer`` every panel is divided once more.
        """
        bulks = convolution.edges
        pieces = self.pieces(bulks, mhat, Sigmahat)
        ends = np.append(self.plateaus(mhat, Sigmahat), 2 / mhat * pieces.y)
        cuts = _inside(np.unique(ends[np.isfinite(ends)]), bulks)
        nodes = convolution.nodes_cut_at(*cuts.tolist())
        if finer:
            x = np.sort(nodes[0])
            every = max(_FEWEST_NODES, len(x) // _MOST_DIVIDED)
            between = 0.5 * (x[:-1] + x[1:])[every // 2 :: every]
            nodes = convolution.nodes_cut_at(*np.union1d(cuts, _inside(between, bulks)).tolist())
        return nodes, self.denoise(nodes[0], mhat, Sigmahat, pieces)

    def cut_and_scale(self, mhat: float, Sigmahat: float) -> tuple[float, float]:
        return np.nan, np.nan

    def squared_response(self, target: Target, mhat: float, qhat: float, Sigmahat: float) -> float:
        (x, w, _), t = self._nodes(target.convolution(np.sqrt(qhat) / mhat), mhat, Sigmahat)
        slope = 0.5 * mhat / (self._slopes.curvature(t) + 0.5 * Sigmahat)
        for first, last in self.plateaus(mhat, Sigmahat):
            slope = np.where((first <= x) & (x <= last), 0.0, slope)
        total = 0.0
        for part in np.array_split(np.arange(len(x)), 1 + len(x) ** 2 // _BLOCK):
            difference = x[part, None] - x
            close = abs(difference) < _SAME * np.ptp(x)
            ratio = np.where(close, slope[part, None], (t[part, None] - t) / np.where(close, 1.0, difference))
            total += float(w[part] @ ratio**2 @ w)
        return total / mhat**2
