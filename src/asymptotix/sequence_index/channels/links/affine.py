"""The channel of affine links: the posterior is Gaussian, in closed form, with and without noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ...models.observed_link import ObservedLink
from ..protocol import Averager, Averages
from ..tools.sample_moments import SampleMoments
from ..tools.small_matrices import cholesky, solve_lower
from .link_channel import LinkChannel
from .link_kind import LinkKind

if TYPE_CHECKING:
    import jax


class LinearChannel(LinkChannel):
    """Channel of y = B z + b + sqrt(noise) N(0, I) with z ~ N(omega, prior).

        E[z|y] - omega = prior B^T S^{-1} (y - b - B omega),   S = B prior B^T + noise,
        Cov[z|y] = prior - prior B^T S^{-1} B prior.

    Only the r = rank B outputs u^T y carry information, with u the left singular vectors of B whose singular values are
    not zero. The other combinations of outputs are constants, plus noise if there is noise.
    """

    description = "the closed form of a Gaussian channel: the link is affine"

    def __init__(self, model: ObservedLink, kind: LinkKind) -> None:
        matrix, offset = kind.matrix, kind.offset
        assert matrix is not None
        left, values, _ = np.linalg.svd(matrix)
        rank = int((values > 1e-10 * values.max()).sum())
        super().__init__(model, rank if model.noise == 0 else 0)
        self.noises = len(matrix) if model.noise > 0 else 0
        self._offset, self._seen, self._unseen = offset, left[:, :rank].T, left[:, rank:].T
        self._B, self._doubt = self._seen @ matrix, kind.doubt

    def footprint(self, draws: int) -> int:
        return 8 * self.size**2

    def exact(self) -> LinearAverager:
        return LinearAverager(self.indices, self.tokens, self._B, self.model.noise, len(self._unseen), self._doubt)

    def moments(self, y: Any, omega: jax.Array, prior: jax.Array, key: jax.Array, draws: int) -> SampleMoments:
        noise, B = self.model.noise, self._B
        residual = self._seen @ (y - self._offset) - B @ omega
        S = B @ prior @ B.T + noise * np.eye(len(B))
        root = cholesky(S)
        whitened = solve_lower(root, residual)
        gain = solve_lower(root, B @ prior)
        log_evidence = -0.5 * (whitened**2).sum() - jnp.log(jnp.diag(root)).sum() - 0.5 * len(B) * np.log(2 * np.pi)
        if noise > 0:
            rest = self._unseen @ (y - self._offset)
            log_evidence -= 0.5 * (rest**2).sum() / noise + 0.5 * len(rest) * np.log(2 * np.pi * noise)
        return SampleMoments(log_evidence, gain.T @ whitened, prior - gain.T @ gain, jnp.inf)


class LinearAverager(Averager):
    """Averages of an affine link, in closed form: neither the covariance of the score g nor G depends on the data.

        G = d g_out/d omega = -H,     E[g g^T] = sum_m H_{.m,.m},     H = B^T S^{-1} B,   S = B (V (x) I_M) B^T + noise.

    Parameters
    ----------
    indices, tokens : int
    B : array (r, P M)
        Matrix of the r independent outputs, with P indices and M tokens; the token varies fastest.
    noise : float
        Variance of the noise on every output.
    unseen : int
        Number of combinations of outputs that do not depend on z.
    doubt : float
        Upper bound on the prior probability of the region where the link is not this affine function.
    """

    def __init__(self, indices: int, tokens: int, B: np.ndarray, noise: float, unseen: int, doubt: float = 0.0) -> None:
        self.accuracy = max(self.accuracy, doubt)
        self._shape, self._B, self._noise, self._unseen = (indices, tokens), B, noise, unseen

    def __call__(self, V: np.ndarray) -> Averages:
        H, log_det = self._slope(V)
        seen = len(self._B) * (1 + np.log(2 * np.pi)) + log_det
        rest = self._unseen * (1 + np.log(2 * np.pi * self._noise)) if self._noise > 0 else 0.0
        own = np.einsum("pmpk->pmk", H)
        return Averages(np.einsum("pmqm->pq", H)[None], np.array([-0.5 * (seen + rest)]), (own**2).sum((-1, -2))[None])

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        H = np.einsum("pi,pmqk,qj->imjk", frame, self._slope(V)[0], frame, optimize=True)
        image = np.einsum("imku,bkl,jmlu->bij", H, basis, H, optimize=True)
        return np.einsum("imjm->ij", H)[None], np.einsum("aij,bij->ab", basis, image)[None]

    def _slope(self, V: np.ndarray) -> tuple[np.ndarray, float]:
        """Return H as an array (P, M, P, M), and log det S, at V (P, P); for both see the class."""
        P, M = self._shape
        S = self._B @ np.kron(V, np.eye(M)) @ self._B.T + self._noise * np.eye(len(self._B))
        return (self._B.T @ np.linalg.solve(S, self._B)).reshape(P, M, P, M), float(np.linalg.slogdet(S)[1])
