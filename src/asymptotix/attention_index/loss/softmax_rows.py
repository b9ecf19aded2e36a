"""Proximal map of the squared loss between two softmax attention matrices, any number of tokens, compiled with numba.

Let b_ac in R^N be the rows of the matrix that maps visible coordinates to pre-activations, A = softmax(beta B r) the
learner's rows and e = A - y. With the means v_a = sum_c A_ac b_ac and s_a = sum_c A_ac e_ac,

    grad loss = 2 beta   sum_ac A_ac (e_ac - s_a) (b_ac - v_a),
    Hessian   = 2 beta^2 sum_ac A_ac (A_ac + e_ac - s_a) (b_ac - v_a)(b_ac - v_a)^T.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .newton_limits import (
    ARMIJO,
    BENT,
    FLATTEST,
    LONGEST,
    MOST_HALVINGS,
    MOST_SHIFTS,
    MOST_STEPS,
    RELATIVE,
    ROUNDING,
    SINGULAR,
)

# Loops in place of array expressions: numba takes seconds to compile each of those.
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "arcp"})


@_compiled
def _value(rows, tokens, r, z, y, precision, beta, A):
    """The objective at r; the learner's softmax is left in A."""
    loss = 0.0
    for a in range(tokens):
        first = a * tokens
        top = -np.inf
        for i in range(first, first + tokens):
            h = 0.0
            for k in range(len(r)):
                h += rows[i, k] * r[k]
            A[i] = h
            top = max(top, h)
        total = 0.0
        for i in range(first, first + tokens):
            A[i] = math.exp(beta * (A[i] - top))
            total += A[i]
        for i in range(first, first + tokens):
            A[i] /= total
            loss += (A[i] - y[i]) ** 2
    distance = 0.0
    for k in range(len(r)):
        distance += (r[k] - z[k]) ** 2
    return loss + 0.5 * precision * distance


@_compiled
def _slopes(rows, tokens, A, y, beta, mean, centred, g, H):
    """Gradient g and lower triangle of the Hessian H of the loss at the softmax A."""
    g.fill(0.0)
    H.fill(0.0)
    for a in range(tokens):
        first = a * tokens
        s = 0.0
        mean.fill(0.0)
        for i in range(first, first + tokens):
            s += A[i] * (A[i] - y[i])
            for k in range(len(mean)):
                mean[k] += A[i] * rows[i, k]
        for i in range(first, first + tokens):
            pull = A[i] - y[i] - s
            slope, curvature = 2 * beta * A[i] * pull, 2 * beta * beta * A[i] * (A[i] + pull)
            for k in range(len(mean)):
                centred[k] = rows[i, k] - mean[k]
                g[k] += slope * centred[k]
                part = curvature * centred[k]
                for j in range(k + 1):
                    H[k, j] += part * centred[j]


@_compiled
def _cholesky(M):
    """Replace the lower triangle of M by its Cholesky factor; False if M is not safely positive definite."""
    for i in range(len(M)):
        diagonal = M[i, i]
        for j in range(i):
            entry = M[i, j]
            for k in range(j):
                entry -= M[i, k] * M[j, k]
            M[i, j] = entry / M[j, j]
        pivot = diagonal
        for k in range(i):
            pivot -= M[i, k] * M[i, k]
        if not pivot > SINGULAR * diagonal:
            return False
        M[i, i] = math.sqrt(pivot)
    return True


@_compiled
def _substitute(factor, x):
    """Replace x by (factor factor^T)^{-1} x."""
    n = len(x)
    for i in range(n):
        for k in range(i):
            x[i] -= factor[i, k] * x[k]
        x[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            x[i] -= factor[k, i] * x[k]
        x[i] /= factor[i, i]


@_compiled
def _factorise(M, scale, shift, factor):
    """Cholesky factor of scale M + shift, or with more added to the diagonal where that is not positive definite.

    Returns what was added beyond ``shift``.
    """
    more, given = FLATTEST * shift, shift
    for _ in range(MOST_SHIFTS):
        for i in range(len(M)):
            for j in range(i):
                factor[i, j] = scale * M[i, j]
            factor[i, i] = scale * M[i, i] + shift
        if _cholesky(factor):
            break
        shift += more
        more *= 4
    return shift - given


@_compiled
def _most_bent(H, precision, factor, v):
    """Put the unit vector along which H + precision is least into v; how far below zero it is there.

    ``factor`` is that of H + precision and of as much more as makes it positive definite: its inverse is largest along
    the vector that is looked for.
    """
    for k in range(len(v)):
        v[k] = 1.0 / (k + 1)  # in no symmetric place
    for _ in range(MOST_SHIFTS):
        _substitute(factor, v)
        norm = 0.0
        for k in range(len(v)):
            norm += v[k] * v[k]
        norm = math.sqrt(norm)
        for k in range(len(v)):
            v[k] /= norm
    lowest = precision
    for i in range(len(v)):
        for j in range(i):
            lowest += 2 * H[i, j] * v[i] * v[j]
        lowest += H[i, i] * v[i] * v[i]
    return -lowest


@_compiled
def _largest_difference(rows, tokens, step):
    """Largest change, by a step in r, of the difference of two pre-activations of one row."""
    largest = 0.0
    for a in range(tokens):
        low, high = np.inf, -np.inf
        for i in range(a * tokens, (a + 1) * tokens):
            h = 0.0
            for k in range(len(step)):
                h += rows[i, k] * step[k]
            low, high = min(low, h), max(high, h)
        largest = max(largest, high - low)
    return largest


@_compiled
def _descend_one(rows, tokens, r, z, y, precision, beta, A, trial, mean, centred, g, H, factor, step):
    """Newton steps, cut to LONGEST, with backtracking from r, which becomes the minimiser; off saddles as well."""
    value = _value(rows, tokens, r, z, y, precision, beta, A)
    for _ in range(MOST_STEPS):
        _slopes(rows, tokens, A, y, beta, mean, centred, g, H)
        for k in range(len(r)):
            g[k] += precision * (r[k] - z[k])
        lacking = _factorise(H, 1.0, precision, factor)
        for k in range(len(r)):
            step[k] = g[k]
        _substitute(factor, step)
        gain = 0.0
        for k in range(len(r)):
            gain += g[k] * step[k]
        bend = 0.0
        if not gain > RELATIVE * value + ROUNDING * math.sqrt(value):
            if lacking > 0:
                bend = _most_bent(H, precision, factor, trial)
            if not bend > BENT * precision:
                # the value no longer resolves the gain, but a Newton step still squares the error
                for k in range(len(r)):
                    r[k] -= step[k]
                return value - 0.5 * gain
            for k in range(len(r)):
                step[k] = trial[k]
            gain = 0.0
        size, lower = min(1.0, LONGEST / (beta * _largest_difference(rows, tokens, step))), value
        for _ in range(MOST_HALVINGS):
            for k in range(len(r)):
                trial[k] = r[k] - size * step[k]
            lower = _value(rows, tokens, trial, z, y, precision, beta, A)
            if lower <= value - ARMIJO * size * (gain + 0.5 * size * bend):
                break
            size *= 0.5
        else:
            return value
        for k in range(len(r)):
            r[k] = trial[k]
        value = lower
    return value


@_compiled
def descend(rows, y, z, start, sigma, beta):
    """Minimisers reached from the starting points (n, N), and the objective there (n,)."""
    n, visible = z.shape
    tokens = int(math.sqrt(len(rows)) + 0.5)
    A, trial, mean, centred = np.empty(len(rows)), np.empty(visible), np.empty(visible), np.empty(visible)
    g, step = np.empty(visible), np.empty(visible)
    H, factor = np.empty((visible, visible)), np.empty((visible, visible))
    p, value = start.copy(), np.empty(n)
    for i in range(n):
        value[i] = _descend_one(
            rows, tokens, p[i], z[i], y[i], 1 / sigma, beta, A, trial, mean, centred, g, H, factor, step
        )
    return p, value


@_compiled
def derivative(rows, y, p, sigma, beta):
    """Trace of dp/dz = (1 + Sigma H)^{-1} and squared norm of (dp/dz - 1)/Sigma = -(1 + Sigma H)^{-1} H."""
    n, visible = p.shape
    tokens = int(math.sqrt(len(rows)) + 0.5)
    A, mean, centred, g = np.empty(len(rows)), np.empty(visible), np.empty(visible), np.empty(visible)
    H, factor, column = np.empty((visible, visible)), np.empty((visible, visible)), np.empty(visible)
    trace, response = np.empty(n), np.zeros(n)
    for i in range(n):
        _value(rows, tokens, p[i], p[i], y[i], 0.0, beta, A)
        _slopes(rows, tokens, A, y[i], beta, mean, centred, g, H)
        _factorise(H, sigma, 1.0, factor)  # where p jumps the derivative does not exist: large, but finite
        trace[i] = visible
        for k in range(visible):
            for j in range(visible):
                column[j] = H[max(j, k), min(j, k)]
            _substitute(factor, column)
            trace[i] -= sigma * column[k]
            for j in range(visible):
                response[i] += column[j] * column[j]
    return trace, response
