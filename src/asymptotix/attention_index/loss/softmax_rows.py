"""Proximal map of the squared loss between two softmax attention matrices, any number of tokens, compiled with numba.

The coordinates are the L = T(T+1)/2 entries z_ab, a <= b, with h_ab = sqrt(1 + delta_ab) z_ab. One of their directions
is invisible, but every logit depends on one entry only, and a row of the softmax couples T entries. With e = A - y,
s_a = sum_c A_ac e_ac and k_ac = A_ac (A_ac + e_ac - s_a), the derivatives of the loss in the logits of row a are

    gradient_b = 2 beta A_ab (e_ab - s_a),
    Hessian_bc = 2 beta^2 sum_d k_ad (delta_db - A_ab)(delta_dc - A_ac).

Along the invisible direction both derivatives vanish, and the descents do not move.

Samples are processed in lanes, the last axis of all arrays. For a single sample every operation would wait for the one
before; in a loop over lanes the processor does several at a time. A lane whose descent has ended takes the next sample.
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

# Loops replace array expressions, because numba takes seconds to compile each array expression.
_options: dict = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract", "arcp"}}
_compiled = njit(**_options)
_inlined = njit(inline="always", **_options)

_LANES = 64
_INVERSE_LN2 = 1 / math.log(2.0)
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # an integer times the first is exact


# Rows of ``state``, one column per lane: the objective at the current point and at the trial point, the share of the
# step that is tried, and minus the slope and minus the curvature of the objective along the whole step.
_VALUE, _LOWER, _SIZE, _GAIN, _BEND = range(5)
# Rows of ``counts``: the sample of the lane (-1: none is left), the number of steps, and the halvings of the last step.
_SAMPLE, _STEPS, _HALVINGS = range(3)
_FRESH = -1  # value of _HALVINGS at a start, which has no earlier point to be compared with


@_inlined
def _exponentials(x, bits, power):
    """Replace x <= 0 by exp(x) = 2^k exp(r), accurate to the last digit or two; ``power`` is ``bits`` as floats."""
    for w in range(_LANES):
        x[w] = max(x[w], -700.0)
        bits[w] = (np.int64(math.floor(x[w] * _INVERSE_LN2 + 0.5)) + 1023) << 52
    for w in range(_LANES):
        k = math.floor(x[w] * _INVERSE_LN2 + 0.5)
        r = (x[w] - k * _LN2_HIGH) - k * _LN2_LOW
        s = 1 / 479001600.0
        s = s * r + 1 / 39916800.0
        s = s * r + 1 / 3628800.0
        s = s * r + 1 / 362880.0
        s = s * r + 1 / 40320.0
        s = s * r + 1 / 5040.0
        s = s * r + 1 / 720.0
        s = s * r + 1 / 120.0
        s = s * r + 1 / 24.0
        s = s * r + 1 / 6.0
        s = s * r + 0.5
        s = s * r + 1.0
        x[w] = (s * r + 1.0) * power[w]


@_compiled
def _values(place, scale, r, z, y, precision, beta, A, top, total, bits, power, value):
    """Put the objective at r (L, lanes) into value, the learner's softmax into A; ``top`` to ``power`` are memory."""
    value.fill(0.0)
    for k in range(len(r)):
        for w in range(_LANES):
            value[w] += 0.5 * precision * (r[k, w] - z[k, w]) ** 2
    for a in range(len(place)):
        top.fill(-np.inf)
        for b in range(len(place)):
            k = place[a, b]
            for w in range(_LANES):
                A[a, b, w] = beta * scale[k] * r[k, w]
                top[w] = max(top[w], A[a, b, w])
        total.fill(0.0)
        for b in range(len(place)):
            for w in range(_LANES):
                A[a, b, w] -= top[w]
            _exponentials(A[a, b], bits, power)
            for w in range(_LANES):
                total[w] += A[a, b, w]
        for b in range(len(place)):
            for w in range(_LANES):
                A[a, b, w] /= total[w]
                value[w] += (A[a, b, w] - y[a, b, w]) ** 2


@_compiled
def _differentiate(place, scale, y, beta, A, k, s, total, g, H):
    """Put the gradient of the loss at the softmax A into g (L, lanes), and the Hessian's lower triangle into H."""
    g.fill(0.0)
    H.fill(0.0)
    for a in range(len(place)):
        s.fill(0.0)
        total.fill(0.0)
        for b in range(len(place)):
            for w in range(_LANES):
                s[w] += A[a, b, w] * (A[a, b, w] - y[a, b, w])
        for b in range(len(place)):
            at = place[a, b]
            for w in range(_LANES):
                pull = A[a, b, w] - y[a, b, w] - s[w]
                g[at, w] += 2 * beta * scale[at] * A[a, b, w] * pull
                k[b, w] = A[a, b, w] * (A[a, b, w] + pull)
                total[w] += k[b, w]
        for b in range(len(place)):
            at = place[a, b]
            for c in range(b + 1):  # within a row, places increase with c
                to, factor = place[a, c], 2 * beta * beta * scale[at] * scale[place[a, c]]
                for w in range(_LANES):
                    H[at, to, w] += factor * ((total[w] * A[a, b, w] - k[b, w]) * A[a, c, w] - A[a, b, w] * k[c, w])
            for w in range(_LANES):
                H[at, at, w] += 2 * beta * beta * scale[at] * scale[at] * k[b, w]


@_compiled
def _decompose(H, scale, shift, M, safe):
    """Put scale H + shift = L D L^T into M, L below the diagonal and 1/D on it; ``safe`` (lanes,) is 1 if D > 0."""
    safe.fill(1.0)
    for i in range(len(H)):
        for j in range(i):
            for w in range(_LANES):
                M[i, j, w] = scale * H[i, j, w]
            for k in range(j):
                for w in range(_LANES):
                    M[i, j, w] -= M[i, k, w] * M[j, k, w]
        for w in range(_LANES):
            M[i, i, w] = scale * H[i, i, w] + shift
        for j in range(i):
            for w in range(_LANES):
                entry = M[i, j, w] * M[j, j, w]
                M[i, i, w] -= M[i, j, w] * entry
                M[i, j, w] = entry
        for w in range(_LANES):
            if not M[i, i, w] > SINGULAR * (scale * H[i, i, w] + shift):
                safe[w] = 0.0
            M[i, i, w] = 1 / M[i, i, w]


@_compiled
def _substitute(M, x):
    """Replace x (L, lanes) by (L D L^T)^{-1} x, from the factors M of :func:`_decompose`."""
    for i in range(len(x)):
        for k in range(i):
            for w in range(_LANES):
                x[i, w] -= M[i, k, w] * x[k, w]
    for i in range(len(x) - 1, -1, -1):
        for w in range(_LANES):
            x[i, w] *= M[i, i, w]
        for k in range(i + 1, len(x)):
            for w in range(_LANES):
                x[i, w] -= M[k, i, w] * x[k, w]


@_inlined
def _decompose_lane(H, scale, shift, M, w):
    """Factorise lane w as :func:`_decompose` does; return whether its matrix is safely positive definite."""
    for i in range(len(H)):
        for j in range(i):
            entry = scale * H[i, j, w]
            for k in range(j):
                entry -= M[i, k, w] * M[j, k, w]
            M[i, j, w] = entry
        diagonal = scale * H[i, i, w] + shift
        pivot = diagonal
        for j in range(i):
            entry = M[i, j, w] * M[j, j, w]
            pivot -= M[i, j, w] * entry
            M[i, j, w] = entry
        if not pivot > SINGULAR * diagonal:
            return False
        M[i, i, w] = 1 / pivot
    return True


@_compiled
def _factorise(H, scale, shift, M, lacking):
    """Factorise scale H + shift + lacking into M; ``lacking`` (lanes,) >= 0 makes it positive definite."""
    _decompose(H, scale, shift, M, lacking)
    for w in range(_LANES):
        safe, total, more = lacking[w] == 1.0, shift, FLATTEST * shift
        for _ in range(MOST_SHIFTS):
            if safe:
                break
            total += more
            more *= 4
            safe = _decompose_lane(H, scale, total, M, w)
        lacking[w] = total - shift


@_compiled
def _most_bent(H, M, precision, w, v):
    """Put the direction of lowest curvature of H + precision into lane w of v; return minus this curvature.

    M contains the factors of H + precision plus a shift that makes it positive definite. The inverse of this matrix is
    largest along the direction of lowest curvature.
    """
    n = len(v)
    for k in range(n):
        v[k, w] = 1.0 / (k + 1)  # a vector without symmetry
    for _ in range(MOST_SHIFTS):
        norm = 0.0
        for i in range(n):
            for k in range(i):
                v[i, w] -= M[i, k, w] * v[k, w]
        for i in range(n - 1, -1, -1):
            v[i, w] *= M[i, i, w]
            for k in range(i + 1, n):
                v[i, w] -= M[k, i, w] * v[k, w]
            norm += v[i, w] ** 2
        for k in range(n):
            v[k, w] /= math.sqrt(norm)
    lowest = precision
    for i in range(n):
        for j in range(i):
            lowest += 2 * H[i, j, w] * v[i, w] * v[j, w]
        lowest += H[i, i, w] * v[i, w] ** 2
    return -lowest


@_inlined
def _largest_difference(place, scale, step, w):
    """Return the largest change of the difference of two pre-activations in a row by the step of lane w."""
    largest = 0.0
    for a in range(len(place)):
        low, high = np.inf, -np.inf
        for b in range(len(place)):
            k = place[a, b]
            h = scale[k] * step[k, w]
            low, high = min(low, h), max(high, h)
        largest = max(largest, high - low)
    return largest


@_inlined
def _judge(r, trial, state, counts):
    """Move r to the trial point in lanes where this lowers the objective enough; halve the steps of the others."""
    for w in range(_LANES):
        size = state[_SIZE, w]
        promised = size * (state[_GAIN, w] + 0.5 * size * state[_BEND, w])
        if counts[_HALVINGS, w] == _FRESH or state[_LOWER, w] <= state[_VALUE, w] - ARMIJO * promised:
            counts[_HALVINGS, w] = 0
            counts[_STEPS, w] += 1
            state[_VALUE, w] = state[_LOWER, w]
            for k in range(len(r)):
                r[k, w] = trial[k, w]
        else:
            counts[_HALVINGS, w] += 1
            state[_SIZE, w] *= 0.5


@_inlined
def _turn(place, scale, r, g, direction, H, M, lacking, step, state, counts, precision, beta, ended):
    """Put the next step of lanes that have moved into ``step``, at most LONGEST; mark in ``ended`` those at a minimum.

    The step is the Newton ``direction``, or at a saddle the direction of lowest curvature. Lanes that have exhausted
    their steps or halvings are also marked.
    """
    for w in range(_LANES):
        ended[w] = counts[_HALVINGS, w] >= MOST_HALVINGS or counts[_STEPS, w] > MOST_STEPS
        if counts[_HALVINGS, w] > 0 or ended[w]:
            continue
        gain, value = 0.0, state[_VALUE, w]
        for k in range(len(g)):
            step[k, w] = direction[k, w]
            gain += g[k, w] * direction[k, w]
        state[_GAIN, w], state[_BEND, w] = gain, 0.0
        if not gain > RELATIVE * value + ROUNDING * math.sqrt(value):
            if lacking[w] > 0:
                state[_GAIN, w], state[_BEND, w] = 0.0, _most_bent(H, M, precision, w, step)
            if not state[_BEND, w] > BENT * precision:
                # the value no longer resolves the gain, but a Newton step still squares the error
                for k in range(len(g)):
                    r[k, w] -= direction[k, w]
                state[_VALUE, w] -= 0.5 * gain
                ended[w] = True
                continue
        state[_SIZE, w] = min(1.0, LONGEST / (beta * _largest_difference(place, scale, step, w)))


@_inlined
def _refill(basis, y, z, start, following, ended, r, fields, targets, step, trial, state, counts, p, value):
    """Store the minimisers of the lanes that have ended, and put the samples from index ``following`` on there.

    Minimisers go to p (n, N) and their objectives to value (n,). The other lanes get their next trial points. When no
    sample is left, the first sample fills a lane but is not counted. Returns the index of the next sample, and the
    number of minimisers that were stored.
    """
    (n, visible), tokens, taken = z.shape, len(targets), 0
    for w in range(_LANES):
        if not ended[w]:
            for k in range(len(basis)):
                trial[k, w] = r[k, w] - state[_SIZE, w] * step[k, w]
            continue
        if counts[_SAMPLE, w] >= 0:
            taken += 1
            value[counts[_SAMPLE, w]] = state[_VALUE, w]
            for j in range(visible):
                coordinate = 0.0
                for k in range(len(basis)):
                    coordinate += basis[k, j] * r[k, w]
                p[counts[_SAMPLE, w], j] = coordinate
        i = following if following < n else 0
        counts[_SAMPLE, w] = following if following < n else -1
        counts[_STEPS, w], counts[_HALVINGS, w] = 0, _FRESH
        following += 1
        for k in range(len(basis)):
            field, first = 0.0, 0.0
            for j in range(visible):
                field += basis[k, j] * z[i, j]
                first += basis[k, j] * start[i, j]
            fields[k, w], trial[k, w] = field, first
        for k in range(tokens * tokens):
            targets[k // tokens, k % tokens, w] = y[i, k]
    return following, taken


@_compiled
def descend(basis, place, scale, y, z, start, sigma, beta):
    """Return the minimisers (n, N) reached from ``start`` (n, N), and the objective there (n,).

    The samples are outputs y (n, T*T) and fields z (n, N). ``basis`` (L, N) maps visible coordinates to entries.
    ``place`` (T, T) is the entry on which a pre-activation depends, and ``scale`` (L,) is the factor between them.
    """
    T, L, W, n, precision = len(place), len(basis), _LANES, len(z), 1 / sigma
    fields, r, trial, step = np.empty((L, W)), np.empty((L, W)), np.empty((L, W)), np.empty((L, W))
    state, counts, ended = np.zeros((5, W)), np.full((3, W), -1), np.full(W, True)
    targets, A, row = np.empty((T, T, W)), np.empty((T, T, W)), np.empty((T, W))
    g, direction, H, M = np.empty((L, W)), np.empty((L, W)), np.empty((L, L, W)), np.empty((L, L, W))
    s, total, lacking, bits = np.empty(W), np.empty(W), np.empty(W), np.empty(W, np.int64)
    power = bits.view(np.float64)
    p, value = np.empty(z.shape), np.empty(n)
    following, left = 0, n
    while left:
        following, taken = _refill(
            basis, y, z, start, following, ended, r, fields, targets, step, trial, state, counts, p, value
        )
        left -= taken
        _values(place, scale, trial, fields, targets, precision, beta, A, s, total, bits, power, state[_LOWER])
        _judge(r, trial, state, counts)
        _differentiate(place, scale, targets, beta, A, row, s, total, g, H)
        for j in range(L):
            for w in range(W):
                g[j, w] += precision * (trial[j, w] - fields[j, w])
                direction[j, w] = g[j, w]
        _factorise(H, 1.0, precision, M, lacking)
        _substitute(M, direction)
        _turn(place, scale, r, g, direction, H, M, lacking, step, state, counts, precision, beta, ended)
    return p, value


@_compiled
def derivative(basis, place, scale, y, p, sigma, beta):
    """Return tr dp/dz in visible directions, and |(dp/dz - 1)/Sigma|^2 = |(1 + Sigma H)^{-1} H|^2, each (n,)."""
    T, L, W, (n, visible) = len(place), len(basis), _LANES, p.shape
    r, targets, column = np.empty((L, W)), np.empty((T, T, W)), np.empty((L, W))
    A, row, s, total, lacking = np.empty((T, T, W)), np.empty((T, W)), np.empty(W), np.empty(W), np.empty(W)
    g, H, M, bits = np.empty((L, W)), np.empty((L, L, W)), np.empty((L, L, W)), np.empty(W, np.int64)
    trace, response = np.full(n, L - 1.0), np.zeros(n)
    for first in range(0, n, W):
        for w in range(W):
            i = min(first + w, n - 1)
            for j in range(L):
                r[j, w] = 0.0
                for k in range(visible):
                    r[j, w] += basis[j, k] * p[i, k]
            for j in range(T * T):
                targets[j // T, j % T, w] = y[i, j]
        _values(place, scale, r, r, targets, 0.0, beta, A, s, total, bits, bits.view(np.float64), lacking)
        _differentiate(place, scale, targets, beta, A, row, s, total, g, H)
        _factorise(H, sigma, 1.0, M, lacking)  # where p jumps, the derivative is large but finite
        for i in range(L):
            for j in range(L):
                for w in range(W):
                    column[j, w] = H[max(j, i), min(j, i), w]
            _substitute(M, column)
            for w in range(min(W, n - first)):
                trace[first + w] -= sigma * column[i, w]
                for j in range(L):
                    response[first + w] += column[j, w] ** 2
    return trace, response
