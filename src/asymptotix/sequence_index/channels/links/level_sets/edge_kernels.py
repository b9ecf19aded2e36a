"""Windows, edges and integrals of grids over whitened indices; compiled with numba.

A grid of K^n nodes x over a box holds the values of the link; the last coordinate of the nodes varies fastest. An edge
joins two neighbouring nodes along one coordinate; places on it run from 0 to 1.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

#: Edges whose log density is this much below the largest are left out. Smaller: tails of the posterior are lost.
_CUT = 8.0
_LEAST = 1e-300
_SQRT_HALF = math.sqrt(0.5)
_SQRT_2PI = math.sqrt(2 * math.pi)
#: Width of a piece, in standard deviations, below which a rule of three nodes integrates it.
_NARROW = 1.0
_GAUSS, _OUTER, _INNER = math.sqrt(0.6), 5 / 18, 8 / 18
#: Largest number of points of an edge: its two ends and the inserted points.
MOST_POINTS = 6
#: Deviation of an inserted value from the line through its neighbours, in units of a noticeable change of the answer,
#: above which another point is inserted.
_BENT = 0.1


@njit(cache=True, nogil=True, error_model="numpy")
def _edges_of(values, y, lo, hi, coordinates, sigma, found, scores) -> tuple[int, float]:
    """Write the edges of one sample that may have mass, and their scores; return their number and the best score.

    ``found`` gets coordinate and first node of each edge; for other arguments see :func:`windows`. A score is the
    log of the largest density near the edge, if the link exceeds its end values by its curvature and 0.1 of its change.
    """
    nodes, n = coordinates.shape
    K = coordinates[-1, 0] + 1
    node_squares, edge_squares = np.empty((n, K)), np.empty((n, K))
    for j in range(n):
        step = (hi[j] - lo[j]) / (K - 1)
        for place in range(K):
            x = lo[j] + step * place
            nearest = max(x, 0.0) + min(x + step, 0.0)
            node_squares[j, place], edge_squares[j, place] = 0.5 * x * x, 0.5 * nearest * nearest
    count, best, per_noise = 0, -np.inf, 0.5 / max(sigma * sigma, _LEAST)
    for node in range(nodes):
        square = 0.0
        for j in range(n):
            square += node_squares[j, coordinates[node, j]]
        a, stride = values[node], 1
        for e in range(n - 1, -1, -1):
            place = coordinates[node, e]
            if place < K - 1:
                score = node_squares[e, place] - edge_squares[e, place] - square
                b = values[node + stride]
                low, high = min(a, b) - y, max(a, b) - y
                if score > best - _CUT and (low > 0.0 or high < 0.0):
                    bend = 0.1 * (high - low)
                    if place > 0:
                        bend += 0.25 * abs(values[node - stride] - 2 * a + b)
                    if place < K - 2:
                        bend += 0.25 * abs(a - 2 * b + values[node + 2 * stride])
                    missed = max(max(low, -high) - bend, 0.0)
                    if missed > 0.0:
                        score -= per_noise * missed * missed if sigma > 0.0 else np.inf
                if score > best - _CUT:
                    found[count, 0], found[count, 1], scores[count] = e, node, score
                    count += 1
                    best = max(best, score)
            stride *= K
    return count, best


@njit(cache=True, nogil=True, error_model="numpy")
def windows(values, y, lo, hi, coordinates, sigma) -> None:
    """Shrink in place the boxes ``lo`` to ``hi`` (samples, n) to the region with mass, plus one edge on every side.

    ``values`` (samples, K^n) is the link at nodes with integer coordinates ``coordinates`` (K^n, n), ``y`` (samples,)
    the outputs, ``sigma`` the noise's standard deviation.
    """
    nodes, n = coordinates.shape
    K = coordinates[-1, 0] + 1
    found, scores = np.empty((n * nodes, 2), np.int64), np.empty(n * nodes)
    first, last = np.empty(n, np.int64), np.empty(n, np.int64)
    for k in range(len(lo)):
        count, best = _edges_of(values[k], y[k], lo[k], hi[k], coordinates, sigma, found, scores)
        if count == 0:  # a box around the node whose value is nearest to y
            node = np.abs(values[k] - y[k]).argmin()
            first[:], last[:] = coordinates[node], coordinates[node]
        else:
            first[:], last[:] = K, -1
        for m in range(count):
            if scores[m] > best - _CUT:
                e, node = found[m]
                for j in range(n):
                    place = coordinates[node, j]
                    first[j] = min(first[j], place)
                    last[j] = max(last[j], place + (j == e))
        for j in range(n):
            start, step = lo[k, j], (hi[k, j] - lo[k, j]) / (K - 1)
            lo[k, j] = start + step * (first[j] - 1)
            hi[k, j] = start + step * (last[j] + 1)


@njit(cache=True, nogil=True, error_model="numpy")
def relevant_edges(values, y, lo, hi, coordinates, sigma, edges, tops) -> int:
    """Write to ``edges`` (m, 3) sample, coordinate and first node of edges near which there is mass; return how many.

    ``tops`` (samples,) gets the logs of the largest densities. See :func:`windows` for the other arguments. If
    there are more than m edges, the first m are written and the number of all is returned.
    """
    nodes, n = coordinates.shape
    found, scores, total = np.empty((n * nodes, 2), np.int64), np.empty(n * nodes), 0
    for k in range(len(lo)):
        count, best = _edges_of(values[k], y[k], lo[k], hi[k], coordinates, sigma, found, scores)
        tops[k] = best
        for m in range(count):
            if scores[m] > best - _CUT:
                if total < len(edges):
                    edges[total, 0], edges[total, 1], edges[total, 2] = k, found[m, 0], found[m, 1]
                total += 1
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def asked_points(edges, asked, lo, hi, coordinates, mean, root, rows, points) -> None:
    """Write to ``rows`` the numbers of edges whose place ``asked`` is not nan, and to ``points`` (n, m) the z there.

    Here z = mean + root x, with ``mean`` (samples, n) and ``root`` (samples, n, n).
    """
    n = coordinates.shape[1]
    K, count, x = coordinates[-1, 0] + 1, 0, np.empty(n)
    for m in range(len(edges)):
        if not asked[m] >= 0.0:
            continue
        k, e, node = edges[m]
        for j in range(n):
            step = (hi[k, j] - lo[k, j]) / (K - 1)
            x[j] = lo[k, j] + step * (coordinates[node, j] + (asked[m] if j == e else 0.0))
        for i in range(n):
            z = mean[k, i]
            for j in range(n):
                z += root[k, i, j] * x[j]
            points[i, count] = z
        rows[count] = m
        count += 1


@njit(cache=True, nogil=True, error_model="numpy")
def begin(values, y, coordinates, edges, places, outputs, counts, asked) -> None:
    """Write per edge the ``places`` 0 and 1 of its ends, ``outputs`` minus y there, and their number ``counts``.

    ``asked`` gets the place of the first inserted point, about where the link is y.
    """
    n, K = coordinates.shape[1], coordinates[-1, 0] + 1
    for m in range(len(edges)):
        k, e, node = edges[m]
        stride = K ** (n - 1 - e)
        a, b = values[k, node] - y[k], values[k, node + stride] - y[k]
        places[m, 0], places[m, 1] = 0.0, 1.0
        outputs[m, 0], outputs[m, 1] = a, b
        counts[m] = 2
        asked[m] = a / (a - b) if a * b < 0 else 0.5
        asked[m] = min(max(asked[m], 0.05), 0.95)


@njit(cache=True, nogil=True, error_model="numpy")
def inserted(found, y, rows, edges, sigma, places, outputs, counts, asked) -> int:
    """Insert the link's values ``found`` at places ``asked`` of the edges ``rows``; write the next places, or nan.

    Returns the number of next places. See also :func:`begin`.
    """
    more = 0
    for r in range(len(rows)):
        m = rows[r]
        t, count = asked[m], counts[m]
        at = 0
        while places[m, at] < t:
            at += 1
        for i in range(count, at, -1):
            places[m, i], outputs[m, i] = places[m, i - 1], outputs[m, i - 1]
        places[m, at], outputs[m, at] = t, found[r] - y[edges[m, 0]]
        count += 1
        counts[m] = count
        asked[m] = _next(places[m], outputs[m], count, at, sigma)
        more += asked[m] >= 0.0
    return more


@njit(cache=True, nogil=True, error_model="numpy")
def _next(places, outputs, count, at, sigma) -> float:
    """Return where an edge of ``count`` points needs a next point, after inserting number ``at``; nan if nowhere."""
    if count >= MOST_POINTS:
        return np.nan
    left, right = at - 1, at + 1
    width = places[right] - places[left]
    share = (places[at] - places[left]) / width
    line = (1 - share) * outputs[left] + share * outputs[right]
    bent = abs(outputs[at] - line)
    span = max(abs(outputs[right] - outputs[at]), abs(outputs[at] - outputs[left]))
    if span == 0.0 or bent * width < _BENT * max(sigma, span):
        return np.nan
    # The piece that crosses the level is divided next; if both cross or none does, the piece that changes more.
    crosses_left = outputs[left] * outputs[at] < 0
    crosses_right = outputs[right] * outputs[at] < 0
    if crosses_left != crosses_right:
        take_left = crosses_left
    else:
        take_left = abs(outputs[at] - outputs[left]) > abs(outputs[right] - outputs[at])
    first = left if take_left else at
    a, b = outputs[first], outputs[first + 1]
    u = 0.5
    if a * b < 0 and bent < 0.5 * abs(b - a):
        u = min(max(a / (a - b), 0.05), 0.95)
    return places[first] + u * (places[first + 1] - places[first])


@njit(cache=True, nogil=True, error_model="numpy")
def _piece(a, b, r, s, sigma, top, found) -> None:
    """Write the three integrals of 1, x, x^2 over a < x < b under N(x; 0, 1) N(r + s (x - a); 0, sigma^2) e^-top.

    With sigma = 0 the second Gaussian is delta(r + s (x - a)).
    """
    found[0] = found[1] = found[2] = 0.0
    if sigma == 0.0:
        if s == 0.0:
            return
        x = a - r / s
        if x < a or x >= b:
            return
        found[0] = math.exp(-0.5 * x * x - top) / (_SQRT_2PI * abs(s))
        found[1], found[2] = found[0] * x, found[0] * x * x
        return
    r0, s = (r - s * a) / sigma, s / sigma
    A = 1 + s * s
    root, m = math.sqrt(A), -s * r0 / A
    alpha, beta = root * (a - m), root * (b - m)
    scale = math.exp(-0.5 * r0 * r0 / A - top) if beta - alpha > _NARROW else 0.0
    norm = 1 / (2 * math.pi * sigma)
    if beta - alpha <= _NARROW:
        middle, half = 0.5 * (a + b), 0.5 * (b - a)
        for i in range(3):
            x = middle + (i - 1) * _GAUSS * half
            weight = (_INNER if i == 1 else _OUTER) * (b - a)
            residual = r0 + s * x
            weight *= norm * math.exp(-0.5 * (x * x + residual * residual) - top)
            found[0] += weight
            found[1] += weight * x
            found[2] += weight * x * x
        return
    if alpha > 0:
        mass = 0.5 * (math.erfc(alpha * _SQRT_HALF) - math.erfc(beta * _SQRT_HALF))
    elif beta < 0:
        mass = 0.5 * (math.erfc(-beta * _SQRT_HALF) - math.erfc(-alpha * _SQRT_HALF))
    else:
        mass = 0.5 * (math.erf(beta * _SQRT_HALF) - math.erf(alpha * _SQRT_HALF))
    mass *= _SQRT_2PI
    at_a, at_b = math.exp(-0.5 * alpha * alpha), math.exp(-0.5 * beta * beta)
    first = at_a - at_b
    second = mass + alpha * at_a - beta * at_b
    scale *= norm / root
    found[0] = scale * mass
    found[1] = scale * (m * mass + first / root)
    found[2] = scale * (m * m * mass + 2 * m * first / root + second / A)


@njit(cache=True, nogil=True, error_model="numpy")
def integrals(edges, places, outputs, counts, gradients, lo, hi, coordinates, root, sigma, tops, sums) -> None:
    """Sum mass, first and second moments of x over edges, separately for lines of even and odd sum of coordinates.

    Parameters
    ----------
    edges : array of int (m, 3)
        Sample, coordinate and first node.
    places, outputs : arrays (m, points)
        Points of the edges, and outputs minus y; ``counts`` (m,) of them are set.
    gradients : array (n, m)
        Gradients of the link with respect to z at the first inserted points.
    sums : array (samples, 2, 1 + n + n^2)
        The sums times e^-tops, see :func:`relevant_edges`; written.
    """
    n, K = coordinates.shape[1], coordinates[-1, 0] + 1
    sums[:] = 0.0
    x, step, slopes, found, piece = np.empty(n), np.empty(n), np.empty(n), np.empty(3), np.empty(3)
    for m in range(len(edges)):
        k, e, node = edges[m]
        parity, square, volume = 0, 0.0, 1.0
        for j in range(n):
            step[j] = (hi[k, j] - lo[k, j]) / (K - 1)
            place = coordinates[node, j]
            x[j] = lo[k, j] + step[j] * place
            slopes[j] = 0.0
            for i in range(n):
                slopes[j] += root[k, i, j] * gradients[i, m]
            if j != e:
                parity += place
                square += x[j] * x[j]
                volume *= step[j] / _SQRT_2PI
        share = _share(slopes, step, e, sigma)
        if share == 0.0:
            continue
        found[:] = 0.0
        for i in range(counts[m] - 1):
            a, b = x[e] + step[e] * places[m, i], x[e] + step[e] * places[m, i + 1]
            s = (outputs[m, i + 1] - outputs[m, i]) / (b - a)
            _piece(a, b, outputs[m, i], s, sigma, tops[k] + 0.5 * square, piece)
            found += piece
        weight = volume * share
        own = sums[k, parity % 2]
        own[0] += weight * found[0]
        for i in range(n):
            own[1 + i] += weight * (found[1] if i == e else x[i] * found[0])
            for j in range(n):
                if i == e and j == e:
                    term = found[2]
                elif i == e:
                    term = found[1] * x[j]
                elif j == e:
                    term = found[1] * x[i]
                else:
                    term = found[0] * x[i] * x[j]
                own[1 + n + i * n + j] += weight * term


@njit(cache=True, nogil=True, error_model="numpy")
def _share(slopes, step, e, sigma) -> float:
    """Return the share of coordinate e in the partition of unity; about zero if the level set is tangent to its lines.

    ``slopes`` (n,) are those of the link, ``step`` (n,) the lengths of edges.
    """
    n, steep = len(slopes), 0.0
    for j in range(n):
        steep = max(steep, abs(slopes[j]))
    level = max(0.05 * sigma / step[e], 1e-9 * steep + _LEAST)
    unit = max(steep, level)
    total = n * (level / unit) ** 4
    for j in range(n):
        total += (slopes[j] / unit) ** 4
    return ((slopes[e] / unit) ** 4 + (level / unit) ** 4) / total
