"""Fast posteriors along the edges of a grid: against fine grids, and what they compile."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex, SequenceIndex
from asymptotix.numerics.linear_algebra import psd_sqrt
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import Accuracy
from link_brute_force import outputs_of

#: Errors of a sample in posterior standard deviations: the median, and the root of the mean square, which is what a run
#: feels. Where a link jumps, lines miss the place of the jump by up to half of their distance, a fourth of a deviation
#: of the prior. Among three indices lines are half a deviation apart. A run of D = 300 does not feel a fifth of one.
#: The link with plateaus is the worst that was seen: 0.14 in the covariance.
SMOOTH, JUMPS, PLATEAUS, THREE = (1e-2, 2e-2), (4e-2, 0.12), (4e-2, 0.2), (8e-2, 0.1)
HALF, CORRELATED = 0.5 * np.eye(2), np.array([[0.5, 0.3], [0.3, 0.4]])
OF_THREE = np.array([[0.6, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 0.3]])


def drawn(model, V: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, fields omega and outputs of samples at overlap I - V."""
    rng, P = np.random.default_rng(1), model.indices
    Q = np.eye(P) - V
    Z, noise = rng.standard_normal((2, count, P, model.tokens))
    omega = np.einsum("pq,nqm->npm", Q, Z) + np.einsum("pq,nqm->npm", psd_sqrt(Q @ V, scale=1.0), noise)
    channel = channel_of(model)
    observation = np.asarray(channel.observe(Z, rng.standard_normal((count, channel.noises))))
    return observation, omega, outputs_of(channel, Z, observation)


def by_brute_force(model, y: float, omega: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shift and covariance of all indices of a sample, from a fine grid."""
    n = omega.size
    axis = np.linspace(-5.5, 5.5, {2: 700, 3: 140}[n])
    x = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), 0).reshape(n, -1)
    away = psd_sqrt(np.kron(V, np.eye(model.tokens))) @ x
    g = np.asarray(model.evaluate((omega.ravel()[:, None] + away).reshape(model.indices, model.tokens, -1)), float)
    weights = np.exp(-0.5 * (x**2).sum(0) - 0.5 * (g.reshape(-1) - y) ** 2 / model.noise)
    mean = away @ weights / weights.sum()
    return mean, (weights * away) @ away.T / weights.sum() - np.outer(mean, mean)


@pytest.mark.parametrize(
    ("model", "V", "bounds"),
    [
        (MultiIndex(lambda z: z[0] * z[1], 2, 0.1), CORRELATED, SMOOTH),
        (MultiIndex(lambda z: z[0] * z[1], 2, 4.0), HALF, SMOOTH),
        (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2, 0.1), HALF, SMOOTH),
        (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2, 0.1), 0.02 * CORRELATED, SMOOTH),
        (SequenceIndex(lambda Z: jnp.tanh(Z[0, 0]) + Z[0, 0] * Z[0, 1], 1, 2, 0.1), np.array([[0.4]]), SMOOTH),
        (MultiIndex(lambda z: jnp.sign(z[0]) * z[1], 2, 0.05), HALF, JUMPS),
        (MultiIndex(lambda z: jnp.sign(z[0] + z[1]) + jnp.maximum(z[0], 0), 2, 0.05), CORRELATED, PLATEAUS),
        (MultiIndex(lambda z: z[0] * z[1] * z[2], 3, 0.3), OF_THREE, THREE),
    ],
)
def test_posteriors_are_those_of_a_fine_grid(model, V, bounds):
    observation, omega, y = drawn(model, V, 10 if omega_size(model) == 3 else 32)
    found, n = channel_of(model).quick_posterior(observation, omega, V, Accuracy()), omega_size(model)
    moments = [by_brute_force(model, *one, V) for one in zip(y[:, 0], omega, strict=True)]
    expected, covariance = (np.array(part) for part in zip(*moments, strict=True))
    spread = np.sqrt(np.einsum("nii->n", covariance))
    away = np.sqrt(((found.shift.reshape(-1, n) - expected) ** 2).sum(1)) / spread
    assert np.median(away) < bounds[0], away
    assert np.sqrt((away**2).mean()) < bounds[1], away
    ratio = abs(found.covariance.reshape(-1, n, n) - covariance).max((1, 2)) / spread**2
    assert np.sqrt((ratio**2).mean()) < bounds[1], ratio


def omega_size(model) -> int:
    return model.indices * model.tokens


def test_sizes_do_not_compile():
    """A link is traced when a program is compiled: not again for another number of samples."""
    traced = []

    def link(z):
        traced.append(z)
        return z[0] * z[1] + jnp.tanh(z[0])

    model = MultiIndex(link, 2, 0.1)
    posterior, V = channel_of(model).quick_posterior, 0.5 * np.eye(2)
    y, omega, _ = drawn(model, V, 64)
    for count in (64, 1):  # programs of two sizes, for many points and for few
        posterior(y[:count], omega[:count], V, Accuracy())
    before = len(traced)
    for count in (2, 17, 50, 64):
        assert posterior(y[:count], omega[:count], V, Accuracy()).shift.shape == (count, 2, 1)
    assert len(traced) == before


def test_an_output_far_from_all_that_was_expected_has_a_posterior():
    channel = channel_of(MultiIndex(lambda z: z[0] * z[1], 2, 0.01))
    y = np.array([[30.0], [-12.0]])
    observation = channel.observe(np.array([[[5.0], [6.0]], [[3.0], [-4.0]]]), np.zeros((2, 1)))
    found = channel.quick_posterior(observation, np.zeros((2, 2, 1)), np.eye(2), Accuracy())
    assert np.isfinite(found.log_evidence).all()
    square = found.covariance[:, 0, 0, 0, 0] + found.shift[:, 0, 0] ** 2
    assert np.allclose(square, abs(y[:, 0]), rtol=0.1)  # at |z_1| = |z_2| = sqrt(|y|), to 1/|y|


def test_channels_that_are_fast_keep_their_own():
    for model in (MultiIndex(lambda z: jnp.sign(z[0] * z[1]), 2), MultiIndex(lambda z: z[0], 1, 0.1)):
        channel = channel_of(model)
        assert channel.quick_posterior == channel.posterior
