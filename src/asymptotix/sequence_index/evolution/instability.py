"""Weak recovery: along which directions of index space (R^P) zero overlap is unstable, and from which alpha on.

On a branch of fixed points with a learned subspace (at first none), a direction outside it starts by itself if
E[g g^T] does not vanish there, with g = V^{-1} (E[z|y] - omega) the score: its threshold is zero on that branch. In
the remaining directions a small overlap X (positive semi-definite) becomes alpha F(X) in one iteration,

    F(X)_{ij} = sum_{k,l,m,n} E[G_{ik,mn} X_{kl} G_{jl,mn}],       G = d g_out / d omega  (tokens m, n),

a self-adjoint map that preserves positivity. Zero overlap is unstable where alpha lambda > 1, with lambda the largest
eigenvalue of F. From an isotropic start the overlap grows along the projection of the unit matrix on the leading
eigenspace, which is positive too.

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
#: Number of errors by which an average must exceed zero to be significant. With fewer, noise counts as a direction.
SIGNIFICANT = 4.0
#: Number of errors above the mean up to which a value is not excluded; with eight rows 1 in 25 values is larger.
NOT_EXCLUDED = 2.0
#: Number of errors within which two eigenvalues count as equal. With fewer, noise splits a degenerate eigenvalue.
_TIED = 3.0
#: Largest factor by which the scatter of rows is too small if eigenvalues are equal: each half of the rows chooses the
#: eigenvectors for the other half, so that both may have the same error, see :func:`_crossed`.
_ALIKE = np.sqrt(2)
#: Eigenvalues of the growing overlap matrix below this share of its largest one are set to zero, as numerical noise.
_NEGLIGIBLE = 0.03


class Instability(NamedTuple):
    """Directions in which zero overlap is unstable on a branch, and their growth rate.

    Attributes
    ----------
    moment : array (P, P)
        E[g g^T] outside the learned subspace (g: score), restricted to directions where it is not zero:
        these are learned at any alpha.
    rate : float
        lambda, the largest eigenvalue of F outside the learned subspace and the range of ``moment``. In one iteration
        a small overlap X becomes alpha F(X), which grows where alpha lambda > 1.
    error : float
        Error of ``rate``, enlarged for few randomisations: three errors cover 99.7 % of cases.
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
    """Return the instability of the fastest growing index in the mask ``candidates`` (P,), for diagonal overlaps.

    ``curvature`` (R, P) has a row of f_l = E|G_ll|^2 per randomisation, with G the derivative of the score. A small
    overlap of index l is multiplied by alpha f_l in one iteration.
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
    """Return the instability in the span of ``complement`` (P, d), at posterior variance V (P, P).

    Parameters
    ----------
    averages : list
        Independent blocks of nodes, of which the mean is taken.
    complement : array (P, d)
        Orthonormal columns: the directions that are not learned.
    floor : float
        Value of E|g|^2 (g: score) along a direction below which it counts as zero.
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
    """Return the instability in the span of the orthonormal columns ``complement`` (P, d).

    ``moments`` (R, d, d) are E[g g^T] and ``operators`` (R, b, b) the map F of small overlaps there, in the basis of
    :func:`symmetric_basis`, per randomisation. E|g|^2 below ``floor`` counts as zero. With ``noisy`` it must also
    exceed its error, see :func:`_significant`.
    """
    basis = symmetric_basis(complement.shape[1])
    vectors, values, unseen = _significant(moments, floor, noisy)
    moment = (vectors * values) @ vectors.T
    rest = np.linalg.svd(vectors)[0][:, vectors.shape[1] :] if vectors.shape[1] else np.eye(len(moment))
    rate, error, direction = _leading(_restricted(operators, basis, rest), rest)
    outward = complement @ np.stack([moment, direction]) @ complement.T
    return Instability(outward[0], rate, error, outward[1], unseen)


def _significant(moments: np.ndarray, floor: float, noisy: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the c eigenvectors (d, c) of the mean of ``moments`` (R, d, d) with eigenvalues above ``floor``.

    The second item are these eigenvalues (c,), the third is the largest value that is not excluded along the other
    eigenvectors (0 if not ``noisy``). With ``noisy``, moments that vanish on average scatter: an eigenvalue must then
    also exceed its error, along directions that the other half of the R rows has chosen.
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
    """Return values u_k^T A_r u_k (R, d) of symmetric matrices A_r (R, d, d), ascending in the eigenvalue of u_k.

    For each half of the matrices u_k are the eigenvectors of the mean of the other half, to avoid a bias upwards.
    """
    values = np.empty(matrices.shape[:2])
    for own, other in ((0, 1), (1, 0)):
        vectors = np.linalg.eigh(matrices[other::2].mean(0))[1]
        values[own::2] = np.einsum("ik,rij,jk->rk", vectors, matrices[own::2], vectors)
    return values


def _restricted(operators: np.ndarray, basis: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return operators (R, b, b), given in ``basis`` (b, d, d), restricted to the span of ``frame`` (d, e).

    The result is in the basis of :func:`symmetric_basis` of e x e matrices.
    """
    if frame.shape[1] == 0:
        return np.zeros((len(operators), 0, 0))
    inner = np.einsum("ik,akl,jl->aij", frame, symmetric_basis(frame.shape[1]), frame)
    change = np.einsum("aij,bij->ab", inner, basis)
    return np.einsum("xa,rab,yb->rxy", change, operators, change)


def largest_rates(operators: np.ndarray) -> np.ndarray:
    """Return R values whose mean estimates the largest eigenvalue of the mean of symmetric operators (R, b, b)."""
    if len(operators) >= 4:
        return _crossed(operators)[:, -1]
    leading = np.linalg.eigh(operators.mean(0))[1][:, -1]
    return np.einsum("a,rab,b->r", leading, operators, leading)


def _leading(operators: np.ndarray, frame: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the largest eigenvalue of operators (R, b, b), its error, and the overlap (d, d) that grows.

    They act on symmetric matrices on the span of ``frame`` (d, e). The overlap has norm one; zero: not significant.
    """
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

    The dependence is tested at overlap I/2.
    """
    P, d = frame.shape
    basis = symmetric_basis(d)
    moments, operators = average.moments_and_operators(0.5 * np.eye(P), frame, basis)
    seen = moments + np.einsum("aij,rab,b->rij", basis, operators, np.einsum("bii->b", basis))
    vectors, _, _ = _significant(seen, NO_MOMENT, average.stochastic)
    return frame if vectors.shape[1] == d else frame @ vectors
