"""Averages of the loss: reference fixed points, exact identities and closed forms."""

import math

import jax
import numpy as np
import pytest

from asymptotix.attention_index.loss.generic_loss import GenericLoss
from asymptotix.attention_index.loss.loss_average import LossAverages, QuadraticLinear, SquaredSoftmax
from reference_numbers import reference

CURVES = reference("attention_index")["state_evolution"]
SMOOTH = [
    (name, point["alpha"])
    for name, curve in CURVES.items()
    for point in curve["points"]
    if curve["params"].get("T", 2) == 2 and point["multimin_weight"] < 1e-6
]


def stored(name, alpha):
    """Parameters (signal, beta, target_beta) and the reference point."""
    parameters = CURVES[name]["params"]
    point = next(point for point in CURVES[name]["points"] if point["alpha"] == alpha)
    signal = 1 + parameters["k0"] + parameters["Delta"] / 2
    return signal, parameters.get("beta", 1.0), parameters.get("beta0", 1.0), point


def compared(averages, signal, point):
    """What the averages say and what is stored, by name."""
    m, alpha = point["m"], point["alpha"]
    ours = {
        "qhat": 2 * alpha * averages.f_square,
        "Sigmahat": -2 * alpha * averages.f_noise,
        "mhat": 2 * alpha * (averages.f_target - m * averages.f_noise) / signal,
        "test": averages.test,
        "train": averages.train,
        "M": averages.moreau,
    }
    return {name: (value, point[name]) for name, value in ours.items()}


@pytest.mark.parametrize(("name", "alpha"), SMOOTH[::3])
def test_reference_points_with_their_own_nodes(name, alpha):
    """28 nodes per axis as for the reference, which was iterated to 1e-8."""
    signal, beta, target_beta, point = stored(name, alpha)
    average = SquaredSoftmax(2, beta, target_beta, order=28)
    averages = average(signal, point["m"], point["q"], point["Sigma"], multi_start=True)
    for ours, theirs in compared(averages, signal, point).values():
        assert ours == pytest.approx(theirs, rel=1e-6)
    replicon = 2 * alpha * averages.response
    assert replicon == pytest.approx(point["loss_replicon"], rel=1e-5)
    assert averages.jump_weight < 1e-6


@pytest.mark.parametrize("alpha", [40.0, 1.0, 0.1])
def test_the_default_nodes_are_good_to_a_ten_thousandth(alpha):
    signal, beta, target_beta, point = stored("fact_T2_k0.5_lam0.01_D0.5", alpha)
    average = SquaredSoftmax(2, beta, target_beta)
    assert 20_000 < len(average.weights) < 25_000
    averages = average(signal, point["m"], point["q"], point["Sigma"], multi_start=False)
    for name, (ours, theirs) in compared(averages, signal, point).items():
        assert ours == pytest.approx(theirs, abs=max(3 * point["err"].get(name, 0.0), 1e-4 * theirs)), name


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.05])
def test_three_tokens(alpha):
    signal, beta, target_beta, point = stored("fact_T3_k0.5_lam0.01_D0.5", alpha)
    runs = [
        compared(
            SquaredSoftmax(3, beta, target_beta, count=2**12, seed=seed)(
                signal, point["m"], point["q"], point["Sigma"], multi_start=True
            ),
            signal,
            point,
        )
        for seed in range(4)
    ]
    for name in runs[0]:
        ours = np.array([run[name][0] for run in runs])
        # the reference's standard error and ours, from four scramblings each
        error = math.hypot(point["err"].get(name, 0.0), ours.std(ddof=1) / 2)
        assert ours.mean() == pytest.approx(point[name], abs=4 * error), name


def test_two_tokens_on_sobol_nodes():
    arguments = (1.75, 1.3, 1.4, 1.0)
    exact = SquaredSoftmax(2, 1.0, 1.0)(*arguments, multi_start=False)
    average = SquaredSoftmax(2, 1.0, 1.0, count=2**14)(*arguments, multi_start=False)
    for ours, theirs in zip(average[:-1], exact[:-1], strict=True):
        assert ours == pytest.approx(theirs, rel=3e-3)  # scrambled Sobol in 4 dimensions at 2^14: 1e-3


@pytest.mark.parametrize("Sigma", [0.05, 0.5, 1.0])
def test_stein_equals_the_trace_where_nothing_jumps(Sigma):
    """E[f.xi]/c_1 = E tr df/dz, since the proximal map is smooth below Sigma = 1.04."""
    averages = SquaredSoftmax(2, 1.0, 1.0)(1.75, 1.3, 1.4, Sigma, multi_start=True)
    assert averages.jump_weight == 0
    assert Sigma * averages.f_noise == pytest.approx(
        averages.trace - 2, abs=1e-5
    )  # the quadrature's, 1e-6 at Sigma = 1


def test_jumps_are_counted_and_only_stein_sees_them():
    signal, beta, target_beta, point = stored("fact_T2_k0.5_lam1e-4_D0.5", 0.25)
    averages = SquaredSoftmax(2, beta, target_beta)(signal, point["m"], point["q"], point["Sigma"], multi_start=True)
    assert averages.jump_weight == pytest.approx(point["multimin_weight"], rel=0.2)  # counted on other nodes
    assert point["Sigma"] * averages.f_noise > averages.trace - 2 + 0.02


def test_a_temperature_is_a_scale_of_the_matrix():
    """sigma(beta h) of a learner S is sigma(target_beta h) of S beta/target_beta."""
    ratio = 2.5
    m, q, Sigma = 0.5, 0.3, 0.8
    mismatched = SquaredSoftmax(2, 2.0, 0.8, order=16)(1.75, m, q, Sigma, multi_start=True)
    matched = SquaredSoftmax(2, 0.8, 0.8, order=16)(1.75, m * ratio, q * ratio**2, Sigma * ratio**2, multi_start=True)
    powers = LossAverages(
        f_square=2, f_noise=2, f_target=1, test=0, train=0, moreau=0, response=4, trace=0, jump_weight=0
    )
    for ours, theirs, power in zip(mismatched, matched, powers, strict=True):
        assert ours == pytest.approx(theirs * ratio**power, rel=1e-10)


@pytest.mark.parametrize("tokens", [1, *(pytest.param(tokens, marks=pytest.mark.slow) for tokens in (2, 3))])
def test_linear_attention_in_closed_form(tokens):
    arguments = (1.75, 1.1, 1.4, 0.7)
    closed = QuadraticLinear(tokens)(*arguments, multi_start=True)
    generic = GenericLoss(tokens, lambda y, h: ((y - h) ** 2).sum(), lambda R: R, count=2**12)
    for ours, theirs in zip(generic(*arguments, multi_start=True), closed, strict=True):
        assert ours == pytest.approx(theirs, rel=3e-3)  # second moments of 2^12 Sobol normals


@pytest.mark.slow
def test_a_softmax_loss_in_jax():
    """Cross-checks the averages of the generic path, signs and normalisation included."""
    arguments = (1.75, 1.3, 1.4, 1.5)
    generic = GenericLoss(
        2,
        lambda y, h: ((y - jax.nn.softmax(h, axis=1)) ** 2).sum(),
        lambda R: jax.nn.softmax(R, axis=1),
    )(*arguments, multi_start=True)
    compiled = SquaredSoftmax(2, 1.0, 1.0)(*arguments, multi_start=True)
    generic = generic._replace(trace=generic.trace - 1)  # the direction that the softmax does not see
    for ours, theirs in zip(generic, compiled, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2, abs=1e-3)  # Sobol in 6 dimensions at 2^12: 0.5 %


def test_a_warm_start_changes_nothing_but_the_time():
    average = SquaredSoftmax(2, 1.0, 1.0, order=12)
    _, pull = average.evaluate(1.75, 1.2, 1.3, 0.6, multi_start=False)
    after, _ = average.evaluate(1.75, 1.25, 1.4, 0.7, multi_start=False, near=pull.points)
    fresh = average(1.75, 1.25, 1.4, 0.7, multi_start=False)
    np.testing.assert_allclose(after[:-1], fresh[:-1], rtol=1e-12)
    assert math.isnan(after.jump_weight)


def test_nothing_is_kept_between_calls():
    """Bit for bit, also after another call: nothing is rounded otherwise because of what was asked before."""
    average = SquaredSoftmax(2, 1.0, 1.0, order=12)
    first = average.pull(1.75, 1.25, 1.4, 5.0)
    average(1.75, 0.2, 0.3, 20.0, multi_start=True)
    again = average.pull(1.75, 1.25, 1.4, 5.0)
    assert again[:3] == first[:3]
    np.testing.assert_array_equal(again.points, first.points)


def test_a_pull_is_part_of_the_averages():
    for average in (QuadraticLinear(2), SquaredSoftmax(2, 1.0, 1.0, order=8)):
        assert average.pull(1.75, 1.3, 1.4, 0.7)[:3] == average(1.75, 1.3, 1.4, 0.7, multi_start=False)[:3]


def test_a_learner_without_noise():
    """q = m^2/signal: z follows z0, and the derivative stands for Stein's quotient."""
    average = SquaredSoftmax(2, 1.0, 1.0)
    limit = average(1.75, 1.4, 1.4**2 / 1.75, 0.5, multi_start=False)
    near = average(1.75, 1.4, 1.4**2 / 1.75 + 1e-8, 0.5, multi_start=False)
    np.testing.assert_allclose(limit[:-1], near[:-1], rtol=1e-4)  # the spread of z is 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.75, 1.3, 1.4, 0.0), "Sigma must be positive, got 0"),
        ((1.75, 1.3, 1.4, math.nan), "Sigma must be positive, got nan"),
        ((-1.0, 1.3, 1.4, 1.0), "signal must be positive, got -1"),
        ((1.75, 1.7, 1.4, 1.0), r"m must be at most sqrt\(q \* signal\) = 1\.56\d* in absolute value, got 1\.7"),
        ((1.75, 1.3, -1.4, 1.0), "q must be non-negative, got -1.4"),
    ],
)
@pytest.mark.parametrize("average", [QuadraticLinear(2), SquaredSoftmax(2, 1.0, 1.0, order=4)])
def test_bad_arguments(average, arguments, message):
    with pytest.raises(ValueError, match=message):
        average(*arguments, multi_start=False)


def test_bad_rules_and_losses():
    with pytest.raises(ValueError, match="order is for two tokens"):
        SquaredSoftmax(3, 1.0, 1.0, order=8)
    with pytest.raises(ValueError, match="count must be a power of two, got 1000"):
        SquaredSoftmax(3, 1.0, 1.0, count=1000)
    with pytest.raises(ValueError, match="tokens must be an integer of at least 2, got 1"):
        SquaredSoftmax(1, 1.0, 1.0)
    with pytest.raises(TypeError, match="loss must be a JAX function"):
        GenericLoss(2, "square", lambda R: R)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="loss must return a scalar"):
        GenericLoss(2, lambda y, h: (y - h) ** 2, lambda R: R)
    with pytest.raises(FloatingPointError, match="loss must be finite and twice differentiable"):
        GenericLoss(2, lambda y, h: jax.numpy.log(h).sum(), lambda R: R, count=16)(
            1.0, 0.5, 1.0, 1.0, multi_start=False
        )
