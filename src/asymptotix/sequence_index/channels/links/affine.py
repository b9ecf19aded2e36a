"""Affine links: the posterior is Gaussian, in closed form, with and without noise."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ...models.link import LinkModel
from ..tools.sample_moments import SampleMoments
from .link_channel import LinkChannel


class LinearChannel(LinkChannel):
    """y = B z + b + sqrt(noise) N(0, 1), z ~ N(omega, prior).

        E[z|y] - omega = prior B^T S^{-1} (y - b - B omega),   S = B prior B^T + noise,
        Cov[z|y] = prior - prior B^T S^{-1} B prior.

    Only the r independent outputs u^T y matter (u the left singular vectors of B); without noise the others repeat
    them, with noise they are noise alone.
    """

    description = "the closed form of a Gaussian channel: the link is affine"

    def __init__(self, model: LinkModel, matrix: np.ndarray, offset: np.ndarray) -> None:
        left, values, _ = np.linalg.svd(matrix)
        rank = int((values > 1e-10 * values.max()).sum())
        super().__init__(model, rank if model.noise == 0 else 0)
        self.noises = len(matrix) if model.noise > 0 else 0
        self._offset, self._seen, self._unseen = offset, left[:, :rank].T, left[:, rank:].T
        self._B = self._seen @ matrix

    def footprint(self, draws: int) -> int:
        return 8 * self.size**2

    def moments(self, y: Any, omega: Any, prior: Any, key: Any, draws: int) -> SampleMoments:
        noise, B = self.model.noise, self._B
        residual = self._seen @ (y - self._offset) - B @ omega
        S = B @ prior @ B.T + noise * np.eye(len(B))
        root = jnp.linalg.cholesky(S)
        whitened = jnp.linalg.solve(root, residual)
        gain = jnp.linalg.solve(root, B @ prior)
        log_evidence = -0.5 * (whitened**2).sum() - jnp.log(jnp.diag(root)).sum() - 0.5 * len(B) * np.log(2 * np.pi)
        if noise > 0:
            rest = self._unseen @ (y - self._offset)
            log_evidence -= 0.5 * (rest**2).sum() / noise + 0.5 * len(rest) * np.log(2 * np.pi * noise)
        return SampleMoments(log_evidence, gain.T @ whitened, prior - gain.T @ gain, jnp.inf)
