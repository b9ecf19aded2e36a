"""One index with noise by quadrature: against closed forms, an identity, and posteriors of random nodes."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import BayesOptimal, MultiIndex, solve
from asymptotix.numerics.quadrature import error_of_mean
from asymptotix.sequence_index.channels.choose import channel_of, channel_of_link
from asymptotix.sequence_index.channels.links.one_index.noisy_averager import STEPS, NoisyAverager
from asymptotix.sequence_index.evolution.averages import QuasiRandomAverager
from asymptotix.sequence_index.models.observed_link import ObservedLink

#: Smooth and steep, with jumps, constant on a half line, with many extrema.
LINKS = {
    "cubic": lambda: MultiIndex(lambda z: z[0] ** 3 - z[0], 1, 0.2),
    "square": lambda: MultiIndex(lambda z: z[0] ** 2, 1, 0.01),
    "sign": lambda: MultiIndex(lambda z: jnp.sign(z[0] - 0.3), 1, 0.3),
    "rectifier": lambda: MultiIndex(lambda z: jnp.maximum(z[0], 0.0), 1, 0.05),
    "sine": lambda: MultiIndex(lambda z: jnp.sin(5 * z[0]), 1, 0.01),
    "steep": lambda: MultiIndex(lambda z: jnp.tanh(1000 * z[0]), 1, 0.01),
    "singular": lambda: MultiIndex(lambda z: jnp.log(abs(z[0])), 1, 0.01),
}


class Plain(ObservedLink):
    """A link of one index in its own units."""

    def __init__(self, link, noise):
        super().__init__(MultiIndex(link, 1, noise))
        self._origin, self._unit, self.noise = np.zeros(1), np.ones(1), noise


#: These are enough where time is short.
FEW = ("cubic", "sign")


@pytest.fixture(
    scope="module", params=[name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in LINKS]
)
def model(request):
    return LINKS[request.param]()


@pytest.fixture(scope="module")
def averager(model):
    found = channel_of_link(model).exact()
    assert isinstance(found, NoisyAverager)
    return found


@pytest.mark.parametrize("v", [1.0, 0.6, 0.03, 1e-4])
def test_a_linear_link_is_gaussian(v):
    noise = 0.4
    found = NoisyAverager(Plain(lambda z: z[0], noise))(np.array([[v]]))
    np.testing.assert_allclose(found.second_moment, 1 / (v + noise), rtol=1e-6)
    np.testing.assert_allclose(found.curvature, 1 / (v + noise) ** 2, rtol=NoisyAverager.accuracy)
    np.testing.assert_allclose(found.log_evidence, -0.5 * np.log(2 * np.pi * np.e * (v + noise)), rtol=1e-6)


@pytest.mark.parametrize("v", [0.8, 0.3, 0.02])
def test_the_slope_of_the_evidence_is_half_the_moment(averager, v):
    """d E[log Z_out] / dq = E[g^2] / 2, of two sums over the same nodes."""
    h = 1e-3 * v
    below, above = (averager(np.array([[v + sign * h]])).log_evidence[0] for sign in (1, -1))
    moment = averager(np.array([[v]])).second_moment[0, 0, 0]
    # A central difference: 1e-6 by its step, and rounding of numbers of order one over that step.
    np.testing.assert_allclose((above - below) / (2 * h), 0.5 * moment, rtol=1e-4, atol=1e-10 / h)


@pytest.fixture(scope="module")
def finer(model):
    return NoisyAverager(ObservedLink(model), (0.5 * STEPS[0], 0.5 * STEPS[1]), order=10)


@pytest.mark.parametrize("v", [1.0, 0.5, 0.1, 1e-3])
def test_finer_steps_and_more_nodes_change_little(averager, finer, v):
    for name in ("second_moment", "log_evidence", "curvature"):
        coarse, fine = (getattr(one(np.array([[v]])), name) for one in (averager, finer))
        # That of the logarithm of a density is what the free entropy is told.
        floor = averager.accuracy if name == "log_evidence" else 1e-12
        np.testing.assert_allclose(coarse, fine, rtol=averager.accuracy, atol=floor, err_msg=name)


@pytest.mark.slow
def test_small_noise_at_a_small_variance():
    """z^2 with little noise: the posterior is that of |z| but for noise/(2z)^2, and the sign is known."""
    found = NoisyAverager(Plain(lambda z: z[0] ** 2, 1e-3))(np.array([[1e-7]]))
    # At this variance a likelihood of slope 2z gives E[g^2] = E[(2z)^2 / (noise + (2z)^2 v)] of the true index.
    z, weight = np.polynomial.hermite_e.hermegauss(80)
    expected = weight @ (4 * z**2 / (1e-3 + 4 * z**2 * 1e-7)) / weight.sum()
    np.testing.assert_allclose(found.second_moment[0, 0, 0], expected, rtol=1e-3)  # terms of order v / noise


@pytest.mark.slow
@pytest.mark.parametrize("v", [0.7, 0.1])
def test_posteriors_of_random_nodes_say_the_same(model, averager, v):
    V = np.array([[v]])
    exact = channel_of(model).exact_averager()
    assert exact is not None
    found, sampled = exact(V), QuasiRandomAverager(channel_of(model), 2**9, 8)(V)
    for name in ("second_moment", "log_evidence", "curvature"):
        rows = getattr(sampled, name).reshape(8, -1)[:, 0]
        assert abs(rows.mean() - getattr(found, name).ravel()[0]) < 3 * error_of_mean(rows), name


def test_curves_have_errors_of_quadrature():
    ds = solve(BayesOptimal(LINKS["cubic"]()), alpha=[0.5, 1.0], progress=False).ds
    assert (ds.overlap_err < 1e-4).all()
    # Sixteen sets of sampled nodes: 0.2606(2), 0.4665(3), whose errors these are.
    assert (abs(ds.overlap.values.ravel() - [0.2606, 0.4665]) < [6e-4, 9e-4]).all()


@pytest.mark.parametrize(
    "model",
    [
        MultiIndex(lambda z: jnp.stack([z[0], z[0] ** 2]), 1, 0.1),  # two outputs
        MultiIndex(lambda z: z[0] * z[1], 2, 0.1),
        MultiIndex(lambda z: jnp.exp(z[0] ** 2), 1, 1e-4),  # too steep for its noise
        MultiIndex(lambda z: z[0] ** 2, 1, 1e-6),
        MultiIndex(lambda z: 1 / (1 + jnp.exp(-200 * z[0])), 1, 0.1),  # its slope overflows where z < -3.5
        MultiIndex(lambda z: jnp.tanh(z[0]), 1, 1e6),  # of which nothing is left
    ],
    ids=["outputs", "indices", "steep", "little noise", "overflow", "much noise"],
)
def test_other_links_are_sampled(model):
    assert channel_of(model).exact_averager() is None
