"""Penalties that are smooth but steep: the spectrum is integrated in pieces, and the reported error covers the rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.penalties import proximal_pieces
from asymptotix.attention_index.penalties.spectral_estimate import SpectralPenalty

LINEAR = asx.AttentionIndex(tokens=1, activation="linear", noise=0.5)


def root(width):
    return lambda t: jnp.sqrt(t * t + width * width)


def ramp(width):
    return lambda t: t + 3 * width * jax.nn.softplus((t - 0.5) / width)


def trained(penalty, parameterization, **options):
    problem = asx.RiskMinimization(LINEAR, weight_decay=0.2, penalty=penalty, parameterization=parameterization)
    return asx.solve(problem, alpha=1.0, progress=False, **options)


@functools.cache
def integral_over_t(width, target, mhat, qhat, Sigmahat):
    """Integrals of 1, t^2 and r(t) over the spectrum for r = sqrt(t^2 + w^2), with x(t) in closed form."""
    law = target.convolution(np.sqrt(qhat) / mhat)
    points, weights = np.polynomial.legendre.leggauss(60)
    # t of both edges, and panels that shrink towards zero; the square-root edges are graded too
    grid = np.concatenate([-np.geomspace(1e-6 * width, 20, 200)[::-1], np.geomspace(1e-6 * width, 20, 200)])
    x = (2 * grid / np.hypot(grid, width) + Sigmahat * grid) / mhat
    low, high = law.edges[0, 0], law.edges[-1, 1]
    t_low, t_high = np.interp([low, high], x, grid)
    for _ in range(60):  # Newton's method for the ends
        for_t = np.array([t_low, t_high])
        value = (2 * for_t / np.hypot(for_t, width) + Sigmahat * for_t) / mhat - [low, high]
        slope = (2 * width**2 / np.hypot(for_t, width) ** 3 + Sigmahat) / mhat
        t_low, t_high = for_t - value / slope
    near = np.geomspace(1e-9, 1, 60) * (t_high - t_low)
    ends = np.unique(np.clip([*grid, *(t_low + near), *(t_high - near), t_low, t_high], t_low, t_high))
    middle, half = 0.5 * (ends[1:] + ends[:-1])[:, None], 0.5 * np.diff(ends)[:, None]
    t = (middle + half * points).ravel()
    x = (2 * t / np.hypot(t, width) + Sigmahat * t) / mhat
    x_slope = (2 * width**2 / np.hypot(t, width) ** 3 + Sigmahat) / mhat
    weight = (half * weights).ravel() * x_slope * law.density(np.clip(x, low, high))
    return weight.sum(), weight @ t**2, weight @ np.hypot(t, width)


@pytest.mark.parametrize("target", [asx.MarchenkoPastur(0.5), asx.Atoms((0.0, 0.5, 1.5), (0.5, 0.3, 0.2))])
@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-6])
def test_averages_of_a_steep_penalty_are_those_of_an_integral_over_t(width, target):
    mass, q, value = integral_over_t(width, target, 2.0, 1.0, 1.5)
    penalty = SpectralPenalty(
        lambda t: np.hypot(t, width),
        lambda t: t / np.hypot(t, width),
        lambda t: width**2 / np.hypot(t, width) ** 3,
        positive=False,
    )
    found = penalty.estimate(target, 2.0, 1.0, 1.5)
    other = penalty.estimate_on_other_nodes(target, 2.0, 1.0, 1.5)
    wrong = abs(mass - 1)  # the integral over t is graded at the outer edges of the law only
    assert wrong < 3e-6
    assert (found.q, found.penalty) == pytest.approx((q, value), rel=1e-8 + 20 * wrong)
    # The least relative error that a solution reports is 1e-9.
    assert (other.q, other.penalty, other.m) == pytest.approx((found.q, found.penalty, found.m), rel=1e-9)


@pytest.mark.parametrize(
    ("penalty", "parameterization", "truth"),
    [
        # from rules with 500 panels that are cut at the steep place, which agree to 1e-10
        (root(1e-2), "full", 0.1773953844),
        (root(1e-3), "full", 0.1773730319),
        (ramp(1e-2), "factorized", 0.1239225685),
        (ramp(1e-3), "factorized", 0.1241245305),
    ],
)
def test_the_error_of_a_solution_covers(penalty, parameterization, truth):
    found = trained(penalty, parameterization)
    assert abs(float(found.estimation_error) - truth) <= float(found.estimation_error_err) + 1e-10
    assert float(found.estimation_error_err) < 1e-8


def test_ever_steeper_penalties_approach_the_one_with_a_kink():
    kinked = float(trained(lambda t: abs(t), "full").estimation_error)
    gaps = [abs(float(trained(root(width), "full").estimation_error) - kinked) for width in (1e-4, 1e-6, 1e-8)]
    assert gaps[0] < 1e-5
    # linear in the width, down to the error of the numbers (1e-9 of them)
    assert gaps[1] < 0.02 * gaps[0] + 1e-9
    assert gaps[2] < 1e-9


def test_a_rule_that_misses_the_steep_place_reports_it(monkeypatch):
    exact = trained(root(1e-3), "full")
    monkeypatch.setattr(proximal_pieces, "_smooth", lambda _, __, pieces: np.ones(len(pieces.t), bool))
    rough = trained(root(1e-3), "full")
    for name in ("estimation_error", "test_error", "train_loss", "q"):
        wrong = abs(float(rough[name]) - float(exact[name]))
        assert 1e-9 < wrong <= float(rough[f"{name}_err"])


@pytest.mark.parametrize(
    ("penalty", "most"),
    [(lambda t: t**2, 1), (lambda t: t**4 + 0.1 * t**2, 4), (lambda t: 0.5 * t**2 + abs(t), 2)],
)
def test_gentle_penalties_need_few_pieces(penalty, most):
    from asymptotix.attention_index.theory.training_equations import _user_penalty

    own = _user_penalty(penalty, 0.2, positive=False)
    assert len(own.pieces(np.array([[-2.0, 3.0]]), 2.0, 1.5).t) <= most


@pytest.mark.slow
def test_many_kinks_in_a_small_interval_are_found():
    """Of kinks that are close together the search for jumps finds one; the pieces find all."""
    knots = jnp.array([0.7, 0.705, 0.71])

    def penalty(t):
        return t + jnp.maximum(t - knots, 0.0).sum()

    found = trained(penalty, "factorized")
    smooth = trained(lambda t: t + (1e-9 * jax.nn.softplus((t - knots) / 1e-9)).sum(), "factorized")
    # widths of 1e-9 change averages by about as much
    assert float(found.estimation_error) == pytest.approx(float(smooth.estimation_error), abs=2e-9)


@pytest.mark.slow
def test_the_derivative_through_a_steep_penalty():
    problem = asx.RiskMinimization(LINEAR, weight_decay=0.2, penalty=root(1e-3), parameterization="full")
    found = asx.gradient(problem, "estimation_error", "weight_decay", alpha=1.0, progress=False)

    def error(decay):
        changed = asx.RiskMinimization(LINEAR, weight_decay=decay, penalty=root(1e-3), parameterization="full")
        return float(asx.solve(changed, alpha=1.0, progress=False).estimation_error)

    quotients = [(error(0.2 + h) - error(0.2 - h)) / (2 * h) for h in (2e-3, 1e-3)]
    richardson = quotients[1] + (quotients[1] - quotients[0]) / 3  # of fourth order in h; rounding 1e-10/1e-3
    assert found.derivative == pytest.approx(richardson, abs=found.derivative_error + 1e-6)
    assert found.derivative_error < 1e-4
