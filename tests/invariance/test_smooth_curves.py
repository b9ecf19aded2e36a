"""Curves at random points are monotone and smooth, and what looks at them finds a jump, a fall and a bend."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from invariance.smooth_curves import CURVES, Curve, examined

#: Points of a curve that take some ten seconds of CPU time, and are close enough for a cubic to see a bend.
POINTS = {
    "two layers": 16,
    "link: relu": 30,
    "link: product": 4,
    "training, alpha": 30,
    "training, decay": 30,
    "paths, width": 200,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POINTS)
def test_curves_at_random_points(name):
    found = examined(CURVES[name], POINTS[name], seed=1)
    assert not any(found.faults), str(found)


ROOT = Curve(lambda: None, "alpha", 1.0, 2.0, 60, "overlap", 1)
ERROR = 1e-4


def _seen(monkeypatch, change) -> list[int]:
    """Numbers of points that did not converge, that fall, and that are not smooth, of a changed square root."""

    def solve(problem, *, alpha, progress):
        values, good = np.sqrt(alpha), np.ones(len(alpha), bool)
        change(values, good)
        words = np.where(good, "converged", "not converged")
        dims = {"overlap": values, "overlap_err": ERROR + 0 * values, "converged": good, "status": words}
        return SimpleNamespace(ds=xr.Dataset({name: ("alpha", value) for name, value in dims.items()}))

    monkeypatch.setattr(asx, "solve", solve)
    return [len(one) for one in examined(ROOT).faults]


def test_a_smooth_curve_passes(monkeypatch):
    assert _seen(monkeypatch, lambda values, good: None) == [0, 0, 0]


def test_a_point_that_did_not_converge_is_found(monkeypatch):
    def change(values, good):
        good[30] = False

    assert _seen(monkeypatch, change) == [1, 0, 0]


def test_a_point_beside_the_curve_is_found(monkeypatch):
    def change(values, good):
        values[30] += 20 * ERROR

    assert _seen(monkeypatch, change)[2] > 0


def test_a_fall_is_found(monkeypatch):
    def change(values, good):
        values[30:] -= 0.1

    assert _seen(monkeypatch, change)[1] == 1
