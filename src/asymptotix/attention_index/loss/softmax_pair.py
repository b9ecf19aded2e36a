"""Proximal map of the squared loss between two softmax attention matrices, two tokens, compiled with numba.

The visible coordinates r = (s, t) give the logits u_1 = s + sqrt2 t and u_2 = -s + sqrt2 t of the two rows, and the
objective is

    |r - z|^2 / (2 Sigma) + 2 (sg(beta u_1) - y_1)^2 + 2 (sg(beta u_2) - y_2)^2,        sg(u) = 1/(1 + exp(-u)).

With the curvatures c_i of the two terms in u_i, the Hessian H of the loss in r has trace 3 (c_1 + c_2) and
determinant 8 c_1 c_2, so that every Newton step and every derivative of the minimiser is explicit.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .newton_limits import ARMIJO, BENT, FLATTEST, LONGEST, MOST_HALVINGS, MOST_STEPS, RELATIVE, ROUNDING, SINGULAR

_options: dict = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "arcp"}}
_compiled = njit(**_options)
_inlined = njit(inline="always", **_options)

_ROOT2 = math.sqrt(2.0)


@_inlined
def _logistic(x):
    return 1.0 / (1.0 + math.exp(-x))


@_inlined
def _value(s, t, zs, zt, a, b, y1, y2, precision):
    return 2 * ((a - y1) ** 2 + (b - y2) ** 2) + 0.5 * precision * ((s - zs) ** 2 + (t - zt) ** 2)


@_inlined
def _slopes(a, y, beta):
    """Return the first and second derivative in u of 2 (sg(beta u) - y)^2, at a = sg(beta u)."""
    rise = beta * a * (1 - a)
    pull = 4 * (a - y)
    return pull * rise, 4 * rise * rise + pull * beta * rise * (1 - 2 * a)


@_inlined
def _step(c1, c2, gs, gt, precision):
    """Return M^{-1} g, g = (gs, gt), M = H(c1, c2) + precision; |M|^{-1} g, downhill, if M is not positive definite."""
    ss, st, tt = c1 + c2 + precision, _ROOT2 * (c1 - c2), 2 * (c1 + c2) + precision
    det = 8 * c1 * c2 + precision * (3 * (c1 + c2) + precision)
    if not (ss > 0 and det > SINGULAR * ss * tt):
        # |M| = (M^2)^{1/2} = (M^2 + |det M|) / (tr M^2 + 2 |det M|)^{1/2}
        size = abs(det)
        scale = 1 / math.sqrt(ss * ss + tt * tt + 2 * st * st + 2 * size)
        floor = FLATTEST * precision
        ss, tt, st = (
            (ss * ss + st * st + size) * scale + floor,
            (tt * tt + st * st + size) * scale + floor,
            st * (ss + tt) * scale,
        )
        det = ss * tt - st * st
    return (tt * gs - st * gt) / det, (ss * gt - st * gs) / det


@_inlined
def _most_bent(c1, c2, precision):
    """Return (s, t) of the unit vector of lowest curvature of H(c1, c2) + precision, and minus this curvature."""
    ss, st, tt = c1 + c2 + precision, _ROOT2 * (c1 - c2), 2 * (c1 + c2) + precision
    half = 0.5 * (tt - ss)
    lowest = 0.5 * (ss + tt) - math.sqrt(half * half + st * st)
    # (st, lowest - ss) and (lowest - tt, st) are the same direction; one of the two may vanish
    vs, vt = (st, lowest - ss) if half < 0 else (lowest - tt, st)
    norm = math.sqrt(vs * vs + vt * vt)
    if norm == 0:
        return 1.0, 0.0, -lowest
    return vs / norm, vt / norm, -lowest


@_inlined
def _descend_one(s, t, zs, zt, y1, y2, precision, beta):
    """Return the minimiser (s, t) and the objective there, by Newton steps of at most LONGEST with backtracking.

    The start is (s, t), z = (zs, zt), and precision = 1/Sigma. Saddles are left along the lowest curvature. A descent
    for a sample that equals its mirror image stays on the line of symmetry. If the minima are off that line, it ends at
    a saddle.
    """
    a, b = _logistic(beta * (_ROOT2 * t + s)), _logistic(beta * (_ROOT2 * t - s))
    value = _value(s, t, zs, zt, a, b, y1, y2, precision)
    for _ in range(MOST_STEPS):
        g1, c1 = _slopes(a, y1, beta)
        g2, c2 = _slopes(b, y2, beta)
        gs, gt = g1 - g2 + precision * (s - zs), _ROOT2 * (g1 + g2) + precision * (t - zt)
        ds, dt = _step(c1, c2, gs, gt, precision)
        gain, bend = gs * ds + gt * dt, 0.0
        if not gain > RELATIVE * value + ROUNDING * math.sqrt(value):
            vs, vt, bend = _most_bent(c1, c2, precision)
            if not bend > BENT * precision:
                # the value no longer resolves the gain, but a Newton step still squares the error
                return s - ds, t - dt, value - 0.5 * gain
            ds, dt, gain = vs, vt, 0.0
        size = min(1.0, LONGEST / (beta * (abs(ds) + _ROOT2 * abs(dt))))
        for _ in range(MOST_HALVINGS):
            trial_s, trial_t = s - size * ds, t - size * dt
            a, b = _logistic(beta * (_ROOT2 * trial_t + trial_s)), _logistic(beta * (_ROOT2 * trial_t - trial_s))
            trial = _value(trial_s, trial_t, zs, zt, a, b, y1, y2, precision)
            if trial <= value - ARMIJO * size * (gain + 0.5 * size * bend):
                break
            size *= 0.5
        else:
            return s, t, value
        s, t, value = trial_s, trial_t, trial
    return s, t, value


@_compiled
def descend(y, z, start, sigma, beta):
    """Return the minimisers r (n, 2) reached from ``start`` (n, 2), and the objective there (n,), for y, z (n, 2)."""
    n = len(z)
    p, value = np.empty((n, 2)), np.empty(n)
    for i in range(n):
        p[i, 0], p[i, 1], value[i] = _descend_one(
            start[i, 0], start[i, 1], z[i, 0], z[i, 1], y[i, 0], y[i, 1], 1 / sigma, beta
        )
    return p, value


@_compiled
def derivative(y, p, sigma, beta):
    """Return tr dp/dz and |(dp/dz - 1)/Sigma|^2 at minimisers p, (n,) each, from dp/dz = (1 + Sigma H)^{-1}."""
    n = len(p)
    trace, response = np.empty(n), np.empty(n)
    for i in range(n):
        s, t = p[i, 0], p[i, 1]
        _, c1 = _slopes(_logistic(beta * (_ROOT2 * t + s)), y[i, 0], beta)
        _, c2 = _slopes(_logistic(beta * (_ROOT2 * t - s)), y[i, 1], beta)
        trace_H, det_H = 3 * (c1 + c2), 8 * c1 * c2
        det = max(1 + sigma * (trace_H + sigma * det_H), SINGULAR)
        trace[i] = (2 + sigma * trace_H) / det
        # H (1 + Sigma H)^{-1} = (H + Sigma det H) / det(1 + Sigma H), and |H|^2 = (tr H)^2 - 2 det H
        square = trace_H * trace_H - 2 * det_H + 2 * sigma * det_H * (trace_H + sigma * det_H)
        response[i] = square / (det * det)
    return trace, response
