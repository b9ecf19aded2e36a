"""Fast posteriors of links against those of their channels, at overlaps from half to nearly all."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import MultiIndex
from asymptotix.numerics.linear_algebra import psd_sqrt
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.protocol import Accuracy

#: See the fast tests of the same; without noise level sets bend within the distance of lines next to critical values.
SAMPLES = 192  # the median of 96 has a relative error of 0.1, which is more than some bounds leave
SMOOTH, JUMPS = (1e-2, 2e-2), (4e-2, 0.12)
LINKS = {
    "product": (MultiIndex(lambda z: z[0] * z[1], 2, 0.1), SMOOTH),
    "steep product": (MultiIndex(lambda z: z[0] * z[1], 2, 1e-3), SMOOTH),
    "squares": (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2, 0.1), SMOOTH),
    "signed": (MultiIndex(lambda z: jnp.sign(z[0]) * z[1], 2, 0.01), JUMPS),
    "product without noise": (MultiIndex(lambda z: z[0] * z[1], 2), JUMPS),
    "ellipses": (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2), SMOOTH),
}
VARIANCES = {
    "half": 0.5 * np.eye(2),
    "one known": np.diag([0.9, 0.02]),
    "correlated": np.array([[0.5, 0.3], [0.3, 0.4]]),
    "all known": 1e-3 * np.eye(2),
}


@pytest.mark.parametrize("variances", VARIANCES)
@pytest.mark.parametrize("name", LINKS)
def test_posteriors_are_those_of_the_channel(name, variances):
    (model, (median, rms)), V = LINKS[name], VARIANCES[variances]
    channel, rng, Q = channel_of(model), np.random.default_rng(1), np.eye(2) - VARIANCES[variances]
    Z, noise = rng.standard_normal((2, SAMPLES, 2, 1))
    omega = Q @ Z + psd_sqrt(Q @ V, scale=1.0) @ noise
    y = np.asarray(channel.observe(Z, rng.standard_normal((SAMPLES, channel.noises))))
    _, shift, covariance = (np.asarray(x, float) for x in channel.posterior(y, omega, V, Accuracy())[:3])
    found = channel.quick_posterior(y, omega, V, Accuracy())
    spread = np.sqrt(np.einsum("npmpm->n", covariance))
    away = np.sqrt(((found.shift - shift) ** 2).sum((1, 2))) / spread
    assert np.median(away) < median, away
    assert np.sqrt((away**2).mean()) < rms, away
    assert abs(np.einsum("npmpm->n", found.covariance) / spread**2 - 1).mean() < 2 * rms
