"""Averages over data at a given overlap. State evolution needs nothing else from a channel.

At overlap Q (P, P) the student's field omega and the true indices Z are jointly Gaussian per token, with V = I - Q:

    Z ~ N(0, I),     omega | Z ~ N(Q Z, Q V),     y = g(Z)

(Troiani et al., arXiv:2502.00901, the averages of eq. (14)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ...numerics import interrupts
from ...numerics.control_variates import Control, hermite_polynomials
from ...numerics.linear_algebra import mixed_rows, psd_sqrt, symmetric_basis
from ...numerics.quadrature import sobol_uniforms
from ...numerics.threads import in_threads
from .. import streams
from ..channels.protocol import (
    MANY_EFFECTIVE_SAMPLES,
    Accuracy,
    Averager,
    Averages,
    Channel,
    Posterior,
    PreparedPosterior,
    ScoreSquares,
    score,
    score_jacobian,
)
from ..channels.row_symmetry import RowSymmetry
from .followed_moments import FollowedMoments

#: Number of products of two Jacobians in memory at once: two megabytes, which stay in a core's cache.
_PRODUCTS_AT_ONCE = 2**18
#: Accuracy of the posterior inside an average. Errors of about 1e-3 per sample have random signs: cells that are four
#: times finer change the averages by less than 1e-4.
POSTERIOR_ACCURACY = Accuracy(fineness=2.0, cut=9.0)
#: Largest diagonal overlaps at which the share of the curvature at zero overlap as a control variate starts to fall
#: from one, and reaches zero. The share falls smoothly, because a discontinuous map may have no fixed point.
_CONTROL_WHOLE, _CONTROL_NONE = 0.1, 0.5
#: Number of draws from which on a posterior covariance has an error of about half a percent or less.
_MANY_DRAWS = 4096
#: Smallest numbers of nodes and of observations per control variate. With fewer the regression fits the noise.
_NODES_PER_CONTROL, _OBSERVATIONS_PER_CONTROL = 16, 4


class QuasiRandomAverager(Averager):
    """Averages over scrambled Sobol nodes, the same nodes at every overlap (common random numbers).

    E[g g^T], with g = V^{-1} (E[Z|y] - omega) the score, has two unbiased estimators: g g^T and (Nishimori) minus the
    trace of dg/domega over tokens. The first is zero exactly where the overlap is, the second varies less near full
    overlap. They are blended with weights 1-q and q (with draws 1-q^4 and q^4, or 1-q^2 and q^2) along the principal
    directions of the overlap. With draws, squares become products of two results from independent lists of draws.

    Control variates reduce the error: at small overlaps the curvature |dg_l/domega_l|^2 at zero overlap, if its mean is
    known exactly; for other channels the Hermite polynomials of degree 2 and 4 of the true indices, at every overlap.

    Parameters
    ----------
    count, randomisations : int
        Number of nodes in each of several independent scramblings.
    block : int
        Number of the part of the Sobol sequence, in parts of ``count`` nodes.
    careful : bool
        Whether posteriors with up to 256 effective draws, instead of 64, are computed again with more draws.
    rough : bool
        Whether posteriors are fast but inaccurate.
    fields : int, optional
        Number of nodes that share one observation, by default the channel's.
    """

    def __init__(
        self,
        channel: Channel,
        count: int,
        randomisations: int,
        seed: int = streams.STATE_EVOLUTION_NODES,
        block: int = 0,
        careful: bool = False,
        rough: bool = False,
        fields: int | None = None,
    ) -> None:
        self.channel, self._count, self._randomisations = channel, count, randomisations
        self._seed, self._block = seed, block
        self._fields = math.gcd(channel.fields if fields is None else fields, count)
        # Posteriors from draws: a sample with fewer effective draws than this is computed again with more draws.
        enough = MANY_EFFECTIVE_SAMPLES if careful else POSTERIOR_ACCURACY.enough
        self._accuracy = replace((rough and channel.rough_accuracy) or POSTERIOR_ACCURACY, enough=enough)
        self.stochastic = channel.stochastic
        self._last: tuple[bytes, Averages | None] = b"", None

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size, fields = self.channel.indices * self.channel.tokens, self._fields

        def drawn(r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            own = sobol_uniforms(self._count, 2 * size, (self._seed, r), block=self._block)
            # Nodes come in groups of ``fields`` that share one observation, so their true indices are the same.
            own[:, :size] = np.repeat(own[: self._count // fields, :size], fields, axis=0)
            return self.channel.draw_nodes(own)

        Z, noise, weights = zip(*in_threads(drawn, range(self._randomisations), first_alone=False), strict=True)
        return np.concatenate(Z), np.concatenate(noise), np.concatenate(weights)

    @cached_property
    def _observation(self) -> np.ndarray:
        Z = self._nodes[0]
        return self.channel.observe(Z, self.channel.own_noise(Z))

    @cached_property
    def _log_volume(self) -> np.ndarray:
        return np.asarray(self.channel.log_output_volume(self._observation))

    @cached_property
    def _curvature_control(self) -> Control:
        """Control variates |G_ll|_F^2 and |G_ll xi_l|^2 of every index l at zero overlap, minus their exact mean.

        G = dg/domega is the Jacobian of the score, xi the Gaussian noise of omega.
        """
        Z, noise, weights = self._nodes
        posterior = self._posterior(np.zeros_like(Z), np.eye(self.channel.indices))
        own = np.einsum("npmpk->npmk", score_jacobian(posterior, np.eye(self.channel.indices)))
        along = (np.einsum("npmk,npk->npm", own, noise) ** 2).sum(-1)
        exact = self.channel.curvature_at_zero()
        assert exact is not None  # ``curvature_is_control`` promises it
        variates = [weights[:, None] * x - exact.value for x in ((own**2).sum((-1, -2)), along)]
        return Control(np.concatenate(variates, 1), self._randomisations)

    @cached_property
    def _hermite_control(self) -> Control | None:
        """Hermite polynomials of the true indices as control variates; None: too few nodes, or not Gaussian ones."""
        if self.channel.folds_symmetries:
            return None
        Z = self._nodes[0].reshape(len(self._nodes[0]), -1)
        most = min(len(Z) // _NODES_PER_CONTROL, len(Z) // self._fields // _OBSERVATIONS_PER_CONTROL)
        variates = hermite_polynomials(Z, most)
        return None if variates is None else Control(variates, self._randomisations)

    @cached_property
    def _posteriors(self) -> list[PreparedPosterior]:
        """Functions of omega and V that return the posterior of all nodes: one, or two with independent draws."""
        channel, fields = self.channel, self._fields
        Z, observation = self._nodes[0][::fields], self._observation[::fields]
        lists = streams.POSTERIOR_LISTS if channel.stochastic else streams.POSTERIOR_LISTS[:1]
        return [channel.prepared(observation, Z, replace(self._accuracy, seed=seed)) for seed in lists]

    def _posterior(self, omega: np.ndarray, V: np.ndarray, which: int = 0) -> Posterior:
        """Return the posterior of every node at fields omega (n, P, M), from list of draws number ``which``."""
        found = self._posteriors[which](omega, V)
        posterior = Posterior(*(np.asarray(x, dtype=float) for x in found[:3]))
        _refuse_lost(posterior.log_evidence, V)
        return posterior

    def samples(
        self,
        V: np.ndarray,
        posterior: Callable[[np.ndarray, np.ndarray, np.ndarray, Accuracy], Posterior] | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Posterior]:
        """Return the n nodes at overlap I - V: true indices Z (n, P, M), importance weights, observations, posteriors.

        ``posterior`` (of observations, omega, V, accuracy), by default the channel's, computes the posteriors.
        """
        Z, _, weights = self._nodes
        found = (posterior or self.channel.posterior)(self._observation, self._omega(V), V, self._accuracy)
        return Z, weights, self._observation, Posterior(*(np.asarray(x, dtype=float) for x in found[:3]))

    def _omega(self, V: np.ndarray) -> np.ndarray:
        """Return the fields omega (n, P, M) of all nodes at overlap I - V."""
        Z, noise, _ = self._nodes
        Q = np.eye(len(V)) - V
        return mixed_rows(Q, Z) + mixed_rows(psd_sqrt(Q @ V, scale=1.0), noise)

    def _all_posteriors(self, V: np.ndarray) -> list[Posterior]:
        """Return the posterior of all nodes at overlap I - V, once or, with draws, twice from independent lists."""
        omega = self._omega(V)
        return [self._posterior(omega, V, which) for which in range(len(self._posteriors))]

    def __call__(self, V: np.ndarray) -> Averages:
        # A search often starts at the V where the previous one ended. The kept averages depend on V alone, so that
        # neither threads nor earlier calls can change a result.
        where, last = self._last
        if where != V.tobytes():
            where, last = self._last = V.tobytes(), self._averaged(V)
        assert last is not None
        return last

    def _averaged(self, V: np.ndarray) -> Averages:
        Q = np.eye(self.channel.indices) - V
        values = self._diagonal_values if self.channel.diagonal else self._matrix_values
        log_evidence, moments, curvatures = values(V, Q)
        log_evidence = log_evidence - self._log_volume
        second_moment, *rest = (self._mean(x, Q) for x in (moments, log_evidence, curvatures))
        if self.channel.diagonal:
            second_moment = second_moment[:, :, None] * np.eye(len(Q))
        # Averages that vanish by a symmetry or by the prior are set to zero, which removes their noise.
        return Averages(self.channel.symmetry.of(V).averaged(second_moment * self.channel.overlap_mask), *rest)

    def _matrix_values(self, V: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log Z_out (n,), the estimate of E[g g^T] (n, P, P) and |dg_l/domega_l|_F^2 (n, P) of every node.

        g is the score, Z_out the evidence.
        """
        posteriors = self._all_posteriors(V)
        (g, G), (h, H) = ((score(one, V), score_jacobian(one, V)) for one in (posteriors[0], posteriors[-1]))
        own, other = (np.einsum("npmpk->npmk", x) for x in (G, H))
        square = _symmetric(np.einsum("npm,nqm->npq", g, h))
        nishimori = -0.5 * (np.einsum("npmqm->npq", G) + np.einsum("npmqm->npq", H))
        root = self._share_of_covariance(Q)
        moments = square + root @ (nishimori - square) @ root
        return _mean_log_evidence(posteriors), moments, (own * other).sum((-1, -2))

    def _diagonal_values(self, V: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log Z_out (n,), estimates of E[g_l^2] (n, P) and |dg_l/domega_l|_F^2 (n, P) for diagonal V and Q."""
        shares = np.diag(self._share_of_covariance(Q)) ** 2
        found = self.channel.score_squares(self._observation, *self._nodes[:2], V, shares, self._accuracy)
        found = self._squares_of_posteriors(V, shares) if found is None else found
        _refuse_lost(found.log_evidence, V)
        return found.log_evidence, found.moments.T, found.curvatures.T

    def _squares_of_posteriors(self, V: np.ndarray, shares: np.ndarray) -> ScoreSquares:
        moments, curvatures, posteriors = [], [], self._all_posteriors(V)
        for row, share in enumerate(shares):
            scores = [_score_of_row(posterior, row, V[row, row]) for posterior in posteriors]
            (g, G), (h, H) = scores[0], scores[-1]
            square = np.einsum("mn,mn->n", g, h)
            nishimori = -0.5 * (np.einsum("mmn->n", G) + np.einsum("mmn->n", H))
            moments.append(square + share * (nishimori - square))
            curvatures.append(np.einsum("mkn,mkn->n", G, H))
        return ScoreSquares(_mean_log_evidence(posteriors), np.stack(moments), np.stack(curvatures))

    def _share_of_covariance(self, Q: np.ndarray) -> np.ndarray:
        """Return the square root (P, P) of the weight of the estimator of E[g g^T] from posterior covariances.

        Covariances from draws are slightly too small, which the estimator amplifies at small overlaps. With draws its
        weight is therefore small there.
        """
        if not self.channel.stochastic:
            return psd_sqrt(Q, scale=1.0)
        return Q if self.channel.draws >= _MANY_DRAWS else Q @ Q

    def along_a_path(self, rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return FollowedMoments(self, rows) if self.channel.diagonal else super().along_a_path(rows)

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        posteriors = self._all_posteriors(V)
        squares, operators = squares_and_operators([(posteriors[0], posteriors[-1])], V, frame, basis)
        Q = np.eye(len(V)) - V
        moments, operators = (self._mean(values, Q) for values in (squares, operators))
        moments, operators = symmetric_growth(self.channel.symmetry.of(V), frame, moments, operators)
        if self.channel.groups is None:
            return moments, operators
        # Rows that act on different parts of the data have no overlap.
        inner = np.einsum("pi,bij,qj->bpq", frame, basis, frame)
        allowed = np.einsum("apq,pq,bpq->ab", inner, self.channel.overlap_mask, inner)
        components = np.einsum("ab,bij,rij->ra", allowed, basis, moments)
        return np.einsum("ra,aij->rij", components, basis), allowed @ operators @ allowed

    def _control_at(self, Q: np.ndarray) -> tuple[Control | None, float]:
        """Return the control variates at overlap Q (or None), and the share of the regression that is subtracted."""
        if not self.channel.curvature_is_control:
            return self._hermite_control, 1.0
        share = _falling((float(np.diag(Q).max()) - _CONTROL_WHOLE) / (_CONTROL_NONE - _CONTROL_WHOLE))
        return (self._curvature_control if share > 0 else None), share

    def _mean(self, values: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """Return means (R, ...) of node values (n, ...) per randomisation, with the control variates for overlap Q."""
        weights, (control, share) = self._nodes[2], self._control_at(Q)
        weighted = (values * weights.reshape(-1, *[1] * (values.ndim - 1))).reshape(len(values), -1)
        mean = weighted.reshape(self._randomisations, self._count, -1).mean(1)
        if control is not None:
            mean = mean - share * (control.means @ (control.inverse @ weighted))
        return mean.reshape(self._randomisations, *values.shape[1:])


def _falling(x: float) -> float:
    """Return 1 for x <= 0, 0 for x >= 1 and a polynomial in between, with two continuous derivatives."""
    t = min(max(x, 0.0), 1.0)
    return 1.0 - t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


def _mean_log_evidence(posteriors: list[Posterior]) -> np.ndarray:
    return np.mean([posterior.log_evidence for posterior in posteriors], axis=0)


def _refuse_lost(log_evidence: np.ndarray, V: np.ndarray) -> None:
    lost = ~np.isfinite(log_evidence)
    if lost.any():
        raise FloatingPointError(f"the channel lost {lost.sum()} samples at V={V.tolist()}")


def _score_of_row(posterior: Posterior, row: int, v: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the score g (M, n) and dg/domega (M, M, n) of index ``row`` in n samples, for diagonal V with entry v."""
    g = np.ascontiguousarray(posterior.shift[:, row].T)
    G = np.ascontiguousarray(np.moveaxis(posterior.covariance[:, row, :, row], 0, -1))
    g /= v
    G /= v**2
    G -= np.eye(len(g))[:, :, None] / v
    return g, G


def squares_and_operators(
    pairs: Sequence[tuple[Posterior, Posterior]], V: np.ndarray, frame: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return g h^T (n, d, d) and <B_a, G B_b H^T> (n, b, b) of every sample, symmetrised and summed over ``pairs``.

    g, G are the score and its Jacobian from the first posterior of a pair, h, H those from the second (the same, or one
    from independent draws). They are projected on ``frame`` (P, d); B_a are the matrices of ``basis`` (b, d, d).
    """
    g, h = (np.concatenate([frame.T @ score(pair[side], V) for pair in pairs], 2) for side in (0, 1))
    G, H = (np.concatenate([_pairs(score_jacobian(pair[side], V), frame) for pair in pairs], 2) for side in (0, 1))
    return _symmetric(g @ np.swapaxes(h, 1, 2)), _symmetric(_forms(G, H, basis))


def _forms(G: np.ndarray, H: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return tr(B_a G B_b H^T) (n, b, b), possibly with a and b exchanged, for Jacobians G, H (n, d d, M M).

    G and H come from :func:`_pairs`; B_a are the matrices of ``basis`` (b, d, d).
    """
    b, d = basis.shape[:2]
    found, flat = np.empty((len(G), b, b)), basis.reshape(b, d * d)
    each = max(1, _PRODUCTS_AT_ONCE // d**4)
    for start in range(0, len(G), each):
        interrupts.check()
        part = slice(start, start + each)
        products = (G[part] @ np.swapaxes(H[part], 1, 2)).reshape(-1, d, d, d, d)
        half = products.transpose(0, 2, 4, 1, 3).reshape(-1, d * d) @ flat.T
        np.matmul(flat, half.reshape(-1, d * d, b), out=found[part])
    return found


def symmetric_growth(
    symmetry: RowSymmetry, frame: np.ndarray, moments: np.ndarray, operators: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments (R, d, d) and operators (R, b, b) on the span of ``frame`` (P, d), averaged over ``symmetry``.

    The symmetry is that of the overlap at which they were taken. Operators refer to :func:`symmetric_basis`.
    """
    if symmetry.trivial:
        return moments, operators
    acting, d = symmetry.on_matrices(frame), frame.shape[1]
    basis = symmetric_basis(d)
    moments = np.einsum("ab,bij,rij,akl->rkl", acting.mean(0), basis, moments, basis, optimize=True)
    return moments, np.mean([one @ operators @ one.T for one in acting], axis=0)


def _pairs(G: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return Jacobians G (n, P, M, P, M), projected on ``frame`` (P, d), as (n, d d, M M): direction, token pairs."""
    (n, P, M), d = G.shape[:3], frame.shape[1]
    pairs = np.ascontiguousarray(np.transpose(G, (0, 1, 3, 2, 4))).reshape(n, P * P, M * M)
    if d == P and np.array_equal(frame, np.eye(P)):
        return pairs
    return np.kron(frame, frame).T @ pairs


def _symmetric(matrices: np.ndarray) -> np.ndarray:
    return 0.5 * (matrices + np.swapaxes(matrices, -1, -2))


def averager(
    channel: Channel,
    count: int,
    randomisations: int,
    seed: int = streams.STATE_EVOLUTION_NODES,
    block: int = 0,
    careful: bool = False,
    rough: bool = False,
    fields: int | None = None,
) -> Averager:
    """Return the exact averager of a channel, or else averages over ``count`` nodes in each of several randomisations.

    ``block`` numbers parts of a long sequence of nodes. ``careful``: posteriors with few effective draws are computed
    again with more. ``rough``: posteriors are fast, but inaccurate. ``fields``: nodes that share one observation.
    """
    exact = channel.exact_averager()
    return exact or QuasiRandomAverager(channel, count, randomisations, seed, block, careful, rough, fields)
