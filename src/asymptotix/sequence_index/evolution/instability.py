"""Weak recovery: which directions of the index space leave an overlap of zero, and at which alpha.

On a branch where a subspace is learned (at first none), a direction outside it starts by itself if E[g g^T] does not
vanish there: its threshold is zero on that branch. On the rest, a small overlap X (positive semi-definite) becomes
alpha F(X) in one iteration,

    F(X)_{ij} = sum_{k,l,m,n} E[G_{ik,mn} X_{kl} G_{jl,mn}],       G = d g_out / d omega  (tokens m, n),

a self-adjoint map of the symmetric matrices that preserves the cone of positive ones. Zero overlap is unstable where
alpha lambda > 1, with lambda the largest eigenvalue of F. From an isotropic start the overlap grows along the
projection of the unit matrix on the leading eigenspace, which is positive too.

Troiani et al., arXiv:2502.00901, Theorem 2.3, eqs. (15) and (16).

Equations si-operator, si-weak of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...numerics.linear_algebra import symmetric_basis
from ...numerics.quadrature import error_of_mean
from ..channels.protocol import Averager

#: Value of E|g|^2 along a direction below which it is rounding of a vanishing posterior mean.
NO_MOMENT = 1e-9
#: Number of errors by which an average must exceed zero to count as different from zero.
SIGNIFICANT = 4.0
#: Standard errors above the mean up to which a value is not excluded; with eight rows 1 in 25 values is larger.
NOT_EXCLUDED = 2.0
#: Number of errors within which two eigenvalues count as equal.
_TIED = 3.0
#: Largest factor by which the scatter of rows is too small if eigenvalues are equal. The noise of each half of the rows
#: chooses the eigenvectors for the other half, so that both halves may have the same error, see :func:`_crossed`.
_ALIKE = np.sqrt(2)
#: Eigenvalues of a direction below this share of the largest one are numerical noise.
_NEGLIGIBLE = 0.03


class Instability(NamedTuple):
    """Directions in which zero overlap is unstable on a branch, and their growth rate.

    Attributes
    ----------
    moment : array (P, P)
        E[g g^T] outside the learned subspace, restricted to directions where it is not zero: these are learned at any
        alpha.
    rate : float
        lambda, the largest eigenvalue of F outside the learned subspace and outside the range of ``moment``. A small
        overlap there grows where alpha lambda > 1.
    error : float
        Error of ``rate``. Three of these errors cover it as often as three standard errors of many rows.
    direction : array (P, P)
        The overlap that grows: positive semi-definite, of Frobenius norm one; zero if the rate is not significant.
    unseen : float
        Largest E|g|^2 that the nodes do not exclude along a direction outside the range of ``moment``.
    """

    moment: np.ndarray
    rate: float
    error: float
    direction: np.ndarray
    unseen: float = 0.0

    @property
    def starts_by_itself(self) -> bool:
        """Whether some direction is learned at any alpha on this branch."""
        return bool(self.moment.any())


def diagonal_instability(curvature: np.ndarray, candidates: np.ndarray) -> Instability:
    """Return the most unstable of the index rows in the mask ``candidates`` (P,), from f_l per randomisation (R, P).

    Where every row may change its sign on its own, F maps diagonal matrices on themselves and F(E_ll) = f_l E_ll.
    """
    P = curvature.shape[1]
    mean = np.where(candidates, curvature.mean(0), -np.inf)
    row = int(mean.argmax())
    if not candidates[row]:
        return Instability(np.zeros((P, P)), 0.0, 0.0, np.zeros((P, P)))
    error = float(error_of_mean(curvature[:, row]))
    return Instability(np.zeros((P, P)), float(mean[row]), error, np.diag(np.eye(P)[row]))


def instability(
    averages: list[Averager],
    V: np.ndarray,
    complement: np.ndarray,
    floor: float = NO_MOMENT,
    allowed: np.ndarray | None = None,
) -> Instability:
    """Return the instability in the span of ``complement`` (P, d), on the branch with posterior variance V.

    Parameters
    ----------
    averages : list
        Independent blocks of nodes, of which the mean is taken.
    floor : float
        Value of E|g|^2 below which it counts as zero.
    allowed : array (P, P), optional
        Projector on the directions that g may have; a symmetry forbids all others.
    """
    P, d = complement.shape
    nothing = np.zeros((P, P))
    if d == 0:
        return Instability(nothing, 0.0, 0.0, nothing)
    basis = symmetric_basis(d)
    parts = [average.moments_and_operators(V, complement, basis) for average in averages]
    moments, operators = (np.mean(part, axis=0) for part in zip(*parts, strict=True))
    if allowed is not None:
        within = complement.T @ allowed @ complement
        moments = within @ moments @ within
    return analysed(moments, operators, complement, floor, noisy=True)


def analysed(
    moments: np.ndarray, operators: np.ndarray, complement: np.ndarray, floor: float, noisy: bool
) -> Instability:
    """Return the instability in the span of ``complement`` (P, d), from E[g g^T] (R, d, d) and F (R, b, b) there.

    ``noisy``: see :func:`_significant`.
    """
    basis = symmetric_basis(complement.shape[1])
    vectors, values, unseen = _significant(moments, floor, noisy)
    moment = (vectors * values) @ vectors.T
    rest = np.linalg.svd(vectors)[0][:, vectors.shape[1] :] if vectors.shape[1] else np.eye(len(moment))
    rate, error, direction = _leading(_restricted(operators, basis, rest), rest)
    outward = complement @ np.stack([moment, direction]) @ complement.T
    return Instability(outward[0], rate, error, outward[1], unseen)


def _significant(moments: np.ndarray, floor: float, noisy: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the principal directions along which the mean of matrices (R, d, d) exceeds the floor, and its values.

    The third item is the largest value that the nodes do not exclude along the other directions.

    A moment that vanishes does so in every sample, unless posteriors come from draws or a few miss a root (``noisy``).
    Then the mean must also exceed its own error, along directions that the other half of the rows has chosen.
    """
    values, vectors = np.linalg.eigh(moments.mean(0))
    if not noisy or len(moments) < 4:
        kept = values > floor
        return vectors[:, kept], values[kept], 0.0
    along = _crossed(moments)
    mean, error = along.mean(0), error_of_mean(along)
    kept = (values > floor) & (mean > SIGNIFICANT * error)
    may_be = np.where(values > floor, mean + NOT_EXCLUDED * error, 0.0)
    return vectors[:, kept], values[kept], float(may_be[~kept].max(initial=0.0))


def _crossed(matrices: np.ndarray) -> np.ndarray:
    """Return values (R, d) of symmetric matrices (R, d, d), in each half along eigenvectors of the other half.

    Eigenvectors of their own mean follow its noise and make the largest value too large.
    """
    values = np.empty(matrices.shape[:2])
    for own, other in ((0, 1), (1, 0)):
        vectors = np.linalg.eigh(matrices[other::2].mean(0))[1]
        values[own::2] = np.einsum("ik,rij,jk->rk", vectors, matrices[own::2], vectors)
    return values


def _restricted(operators: np.ndarray, basis: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return the operators (R, b, b) on the subspace spanned by ``frame`` (d, e), in its own symmetric basis."""
    if frame.shape[1] == 0:
        return np.zeros((len(operators), 0, 0))
    inner = np.einsum("ik,akl,jl->aij", frame, symmetric_basis(frame.shape[1]), frame)
    change = np.einsum("aij,bij->ab", inner, basis)
    return np.einsum("xa,rab,yb->rxy", change, operators, change)


def largest_rates(operators: np.ndarray) -> np.ndarray:
    """Return rows (R,) whose mean estimates the largest eigenvalue of the mean of operators (R, b, b).

    The largest eigenvalue of the mean itself is biased upwards, above all if several eigenvalues are equal.
    """
    if len(operators) >= 4:
        return _crossed(operators)[:, -1]
    leading = np.linalg.eigh(operators.mean(0))[1][:, -1]
    return np.einsum("a,rab,b->r", leading, operators, leading)


def _leading(operators: np.ndarray, frame: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the largest eigenvalue of operators on the span of ``frame`` (d, e), its error, and its matrix (d, d)."""
    d, e = frame.shape
    if e == 0:
        return 0.0, 0.0, np.zeros((d, d))
    basis = symmetric_basis(e)
    values, vectors = np.linalg.eigh(operators.mean(0))
    rates = largest_rates(operators)
    rate, error = float(rates.mean()), float(error_of_mean(rates))
    if rate <= max(NO_MOMENT, SIGNIFICANT * error):
        return max(rate, 0.0), error, np.zeros((d, d))
    # Only the noise of the nodes splits a degenerate eigenvalue (a symmetry of the link).
    along = np.einsum("ak,rab,bk->rk", vectors, operators, vectors)
    gaps = along[:, -1:] - along
    tied = values[-1] - values <= 1e-6 * rate + _TIED * np.maximum(error_of_mean(gaps), error)
    error *= _ALIKE if np.count_nonzero(tied) > 1 else 1.0
    unit = np.einsum("aii->a", basis)
    grown = np.einsum("a,aij->ij", vectors[:, tied] @ (vectors[:, tied].T @ unit), basis)
    size, axes = np.linalg.eigh(grown)
    axes, size = frame @ axes, np.where(size > _NEGLIGIBLE * size.max(), size, 0.0)
    return rate, error, (axes * (size / np.linalg.norm(size))) @ axes.T


def visible_directions(average: Averager, frame: np.ndarray) -> np.ndarray:
    """Return orthonormal columns (P, p): the directions in the span of ``frame`` (P, d) on which the output depends.

    Along other directions the posterior equals the prior at any overlap; half overlap serves as a generic one.
    """
    P, d = frame.shape
    basis = symmetric_basis(d)
    moments, operators = average.moments_and_operators(0.5 * np.eye(P), frame, basis)
    seen = moments + np.einsum("aij,rab,b->rij", basis, operators, np.einsum("bii->b", basis))
    vectors, _, _ = _significant(seen, NO_MOMENT, average.stochastic)
    return frame if vectors.shape[1] == d else frame @ vectors
