"""One index with noise by quadrature: against closed forms, an identity, and posteriors of random nodes."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, MultiIndex, solve
from asymptotix.numerics.quadrature import error_of_mean
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links.one_index.noisy_averager import STEPS, NoisyAverager
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager

#: Smooth and steep, with jumps, constant on a half line, with many extrema.
LINKS = {
    "cubic": MultiIndex(lambda z: z[0] ** 3 - z[0], 1, 0.2),
    "square": MultiIndex(lambda z: z[0] ** 2, 1, 0.01),
    "sign": MultiIndex(lambda z: jnp.sign(z[0] - 0.3), 1, 0.3),
    "rectifier": MultiIndex(lambda z: jnp.maximum(z[0], 0.0), 1, 0.05),
    "sine": MultiIndex(lambda z: jnp.sin(5 * z[0]), 1, 0.01),
}


@pytest.fixture(scope="module", params=LINKS)
def model(request):
    return LINKS[request.param]


@pytest.fixture(scope="module")
def averager(model):
    found = channel_of(model).exact_averager()
    assert isinstance(found, NoisyAverager)
    return found


@pytest.mark.parametrize("v", [1.0, 0.6, 0.03, 1e-4])
def test_a_linear_link_is_gaussian(v):
    noise = 0.4
    found = NoisyAverager(MultiIndex(lambda z: z[0], 1, noise))(np.array([[v]]))
    np.testing.assert_allclose(found.second_moment, 1 / (v + noise), rtol=1e-6)
    np.testing.assert_allclose(found.curvature, 1 / (v + noise) ** 2, rtol=NoisyAverager.accuracy)
    np.testing.assert_allclose(found.log_evidence, -0.5 * np.log(2 * np.pi * np.e * (v + noise)), rtol=1e-6)


@pytest.mark.parametrize("v", [0.8, 0.3, 0.02])
def test_the_slope_of_the_evidence_is_half_the_moment(averager, v):
    """d E[log Z_out] / dq = E[g^2] / 2, which knows nothing of how moments are computed."""
    h = 1e-3 * v
    below, above = (averager(np.array([[v + sign * h]])).log_evidence[0] for sign in (1, -1))
    moment = averager(np.array([[v]])).second_moment[0, 0, 0]
    # A central difference: 1e-6 by its step, and rounding of numbers of order one over that step.
    np.testing.assert_allclose((above - below) / (2 * h), 0.5 * moment, rtol=1e-4, atol=1e-10 / h)


@pytest.mark.parametrize("v", [1.0, 0.5, 0.1, 1e-3])
def test_finer_steps_change_little(model, averager, v):
    finer = NoisyAverager(model, (0.5 * STEPS[0], 0.5 * STEPS[1]))
    for name in ("second_moment", "log_evidence", "curvature"):
        coarse, fine = (getattr(one(np.array([[v]])), name) for one in (averager, finer))
        np.testing.assert_allclose(coarse, fine, rtol=averager.accuracy, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.7, 0.1])
def test_posteriors_of_random_nodes_say_the_same(model, averager, v):
    V = np.array([[v]])
    found, sampled = averager(V), QuasiRandomAverager(channel_of(model), 2**9, 8)(V)
    for name in ("second_moment", "log_evidence", "curvature"):
        rows = getattr(sampled, name).reshape(8, -1)[:, 0]
        assert abs(rows.mean() - getattr(found, name).ravel()[0]) < 3 * error_of_mean(rows), name


def test_curves_have_errors_of_quadrature():
    ds = solve(BayesOptimal(LINKS["cubic"]), alpha=[0.5, 1.0], progress=False).ds
    assert (ds.overlap_err < 1e-4).all()
    # Sixteen sets of sampled nodes: 0.2606(2), 0.4665(3).
    np.testing.assert_allclose(ds.overlap.values.ravel(), [0.2606, 0.4665], atol=1e-3)


@pytest.mark.parametrize(
    "model",
    [
        MultiIndex(lambda z: jnp.stack([z[0], z[0] ** 2]), 1, 0.1),  # two outputs
        MultiIndex(lambda z: z[0] * z[1], 2, 0.1),
        MultiIndex(lambda z: jnp.exp(z[0] ** 2), 1, 1e-4),  # too steep for its noise
    ],
    ids=["outputs", "indices", "steep"],
)
def test_other_links_are_sampled(model):
    assert channel_of(model).exact_averager() is None
