"""Which layer converges first: on curves whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr

from asymptotix.sequence_index.classification.layer_convergence import (
    area_above,
    layer_order,
    passage,
    sign_test,
    similarity,
)

STEPS = np.arange(0.0, 1001.0)


def curves(times):
    """1 - exp(-t/tau) for tau (seed, layer): passages at tau log(1/(1 - level)), an area of tau."""
    values = 1 - np.exp(-STEPS / np.asarray(times, float)[..., None])
    return xr.DataArray(values, dims=("seed", "layer", "step"), coords={"layer": [1, 2], "step": STEPS})


def test_passages_and_areas_of_exponentials():
    order = layer_order(curves([[20, 50], [30, 40]]))
    expected = np.array([[20, 50], [30, 40]])
    # A straight line over one step is off by 1/(8 tau) of a step at most; the trapezoid by 1/(12 tau).
    np.testing.assert_allclose(order["time"].sel(statistic="0.9"), expected * math.log(10), atol=0.01)
    np.testing.assert_allclose(order["time"].sel(statistic="0.95"), expected * math.log(20), atol=0.01)
    np.testing.assert_allclose(order["time"].sel(statistic="half"), expected * math.log(2), atol=0.01)
    np.testing.assert_allclose(order["time"].sel(statistic="area"), expected, atol=0.01)
    np.testing.assert_allclose(order["lead"].sel(statistic="area"), [30, 10], atol=0.01)
    np.testing.assert_allclose(order["mean_lead"].sel(statistic="area"), 20, atol=0.01)
    np.testing.assert_allclose(order["mean_lead_err"].sel(statistic="area"), 10, atol=0.01)  # sd sqrt(200), two runs


@pytest.mark.parametrize(("sign", "earlier"), [(1, 8), (-1, 0)])
def test_the_order_is_found_and_how_likely_it_is_by_chance(sign, earlier):
    times = np.array([[20.0 + k, 50.0 - k] for k in range(8)])[:, ::sign]
    order = layer_order(curves(times))
    assert (order["earlier"] == earlier).all()
    np.testing.assert_allclose(order["p_value"], 2 / 2**8)
    assert (sign * order["mean_lead"] > 3 * order["mean_lead_err"]).all()


def test_like_layers_are_not_ordered():
    times = np.array([[20, 30], [30, 20], [40, 41], [41, 40]])
    order = layer_order(curves(times))
    np.testing.assert_array_equal(order["p_value"], 1)
    np.testing.assert_allclose(order["mean_lead"], 0, atol=1e-9)
    alone = layer_order(curves(times[:1]))
    assert np.isnan(alone["mean_lead_err"]).all()
    np.testing.assert_array_equal(alone["p_value"], 1)


def test_a_curve_that_falls_again_has_not_passed():
    steps = np.array([0.0, 10, 20, 30])
    assert passage(steps, np.array([0.0, 0.95, 0.5, 1.0]), 0.9) == pytest.approx(28)
    assert passage(steps, np.array([0.9, 0.95, 0.93, 1.0]), 0.9) == 0
    assert passage(steps, np.array([0.0, 0.95, 0.93, 0.5]), 0.9) == math.inf
    assert area_above(steps, np.array([0.0, 1.0, 1.0, 1.0])) == pytest.approx(5)


def test_a_layer_that_hardly_moves_is_early_by_levels_and_not_by_its_own_way():
    slow = 1 - 0.04 * np.exp(-STEPS / 100)
    quick = 1 - 0.6 * np.exp(-STEPS / 20)
    both = xr.DataArray([[slow, quick]], dims=("seed", "layer", "step"), coords={"layer": [1, 2], "step": STEPS})
    lead = layer_order(both)["lead"].isel(seed=0)
    assert lead.sel(statistic="0.9") == pytest.approx(20 * math.log(6), abs=0.01)
    assert lead.sel(statistic="area") == pytest.approx(0.6 * 20 - 0.04 * 100, abs=0.01)
    assert lead.sel(statistic="half") == pytest.approx((20 - 100) * math.log(2), abs=0.01)


def test_sign_test():
    assert sign_test(4, 4) == 1
    assert sign_test(8, 0) == sign_test(0, 8) == pytest.approx(2 / 256)
    assert sign_test(7, 1) == pytest.approx(18 / 256)
    assert sign_test(0, 0) == 1
    with pytest.raises(ValueError, match=r"levels must be in \(0, 1\), got 1.2"):
        layer_order(curves([[1, 2]]), levels=[1.2])


def test_similarity():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(2, 3, 4, 6))  # two runs of three steps
    for ways in (w, w.swapaxes(-1, -2)):
        found = similarity(ways)
        K, end = ways[1, 0] @ ways[1, 0].T, ways[1, -1] @ ways[1, -1].T
        assert found[1, 0] == pytest.approx(np.trace(K @ end) / (np.linalg.norm(K) * np.linalg.norm(end)))
        np.testing.assert_allclose(found[:, -1], 1)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    turned = np.stack([w[0, -1] @ turn, w[0, -1]])
    assert similarity(turned)[0] == pytest.approx(1)  # blind to what the keys are made from,
    assert similarity(turned.swapaxes(-1, -2))[0] < 0.9  # which the scores are not
