"""Two-layer attention channel on grids of fixed shape, in JAX: the path for accelerators, and for float32.

The integral is that of the adaptive cubature in ``quadtree``: two tokens, rank one, the rotated token basis
minus = (1,-1)/sqrt2, plus = (1,1)/sqrt2, and

    Z_out = sum_s int dz1  N(z1, z2; omega, V) / |det A(z1)|,        z2 = A(z1)^{-1} s u.

z2 is even in z1, so z1 and -z1 are taken together and only a half plane is integrated over. For each sign s a box on
that half plane is drawn around the mass, in a few rounds from the whole prior down to the peak. On a grid too coarse
for the peak every node stands for its cell: the Gaussian of z2 is averaged over the cell with z2 linearised there,
which has a closed form, so a peak much narrower than the cell is still seen with about its own mass.

The coordinates of the box are x along the normal of the half plane and y along its edge. For every x the y-range is
chosen anew, which follows bent and tapering ridges. The trapezoidal rule converges exponentially in both: in y the
integrand is smooth and vanishes at the ends, and the integral over y is an even function of x.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from asymptotix.sequence_index.activation_kinds import SOFTMAX

_PRIOR_REACH = 5.5  # half width of the first box, in prior standard deviations of z1
_REFINE_CUT, _FINAL_CUT = 6.0, 10.0  # what is below exp(-cut) of the peak lies outside the next box
_ROWS = 1
_TRUST = 0.15
_ENLARGE = 1.3
_LAST = 16
_BLUR = 0.4  # standard deviation of the averaging over a cell, in grid steps; less would leave gaps between nodes
_FIRST, _BETWEEN, _PER_ROW = 24, 16, 16  # points per side of the grids before the last one


class _Sample(NamedTuple):
    """What the integrand depends on: z1 ~ N(omega1, v1), and z2 given z1 ~ N(omega2 + ratio (z1 - omega1), v2)."""

    c: jax.Array
    u: jax.Array
    omega: jax.Array
    v1: jax.Array
    ratio: jax.Array
    v2: jax.Array


class _Box(NamedTuple):
    """low <= x <= high along the normal, |y - offset - slope x| <= half along the edge; half plane x >= 0."""

    normal: jax.Array
    low: jax.Array
    high: jax.Array
    offset: jax.Array
    slope: jax.Array
    half: jax.Array


def _second_layer(kind, c, u, zm, zp):
    """z2 = A(z1)^{-1} u and log det A."""
    um, up = u
    if kind == SOFTMAX:
        p = jnp.tanh(0.5 * zm * (zm + zp))
        q = jnp.tanh(0.5 * zm * (zm - zp))
        k, kappa = c + 0.5 * (p + q), 0.5 * (p - q)
        xm = um / k
        return xm, (up - kappa * xm) / (c + 1), jnp.log(k * (c + 1))
    s = c + zm * zm + zp * zp
    t = (zm * um + zp * up) / s
    return (um - zm * t) / c, (up - zp * t) / c, jnp.log(c * s)


def _cross(a, b):
    return a[0] * b[1] - a[1] * b[0]


def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1]


def _residuals(sample, mirror, z1, z2):
    """z1 - omega1, and z2 less its mean given z1; with ``mirror`` = -1 for the point -z1, which has the same z2."""
    d = mirror * z1[0] - sample.omega[0], mirror * z1[1] - sample.omega[1]
    return d, (z2[0] - sample.omega[2] - sample.ratio * d[0], z2[1] - sample.omega[3] - sample.ratio * d[1])


def _log_integrand(sample, mirror, z1, z2, log_det):
    d, r = _residuals(sample, mirror, z1, z2)
    return -log_det - 0.5 * _dot(d, d) / sample.v1 - 0.5 * _dot(r, r) / sample.v2 - jnp.log(sample.v2)


def _spread(G, v2):
    """Determinant of S = v2 I + sum_g g g^T without cancellation."""
    return v2 * v2 + v2 * sum(_dot(g, g) for g in G) + (_cross(*G) ** 2 if len(G) == 2 else 0)


def _log_cell(layer, sample, mirror, z1, z2, log_det, steps, changes):
    """Log of the integrand averaged over a Gaussian cell."""
    v2 = sample.v2
    d, r = _residuals(sample, mirror, z1, z2)
    shift = mirror * sample.ratio
    G = [(b[0] - shift * a[0], b[1] - shift * a[1]) for a, b in zip(steps, changes, strict=True)]
    det = _spread(G, v2)
    moves = [-(v2 * _dot(g, r) + sum(_cross(f, g) * _cross(f, r) for f in G)) / det for g in G]
    moved = tuple(z1[i] + sum(m * a[i] for m, a in zip(moves, steps, strict=True)) for i in range(2))
    _, left = _residuals(sample, mirror, moved, layer(*moved)[:2])
    small = [(_TRUST * g[0], _TRUST * g[1]) for g in G]
    unexplained = (v2 * _dot(left, left) + sum(_cross(g, left) ** 2 for g in small)) / _spread(small, v2)
    square = sum(m * m for m in moves) + unexplained
    return -log_det - 0.5 * _dot(d, d) / sample.v1 - 0.5 * square - 0.5 * jnp.log(det)


def _folded(kind, sample, z1, steps=()):
    """z2, and the log integrand at z1 and at -z1, averaged over the cells spanned by ``steps``."""

    def layer(zm, zp):
        return _second_layer(kind, sample.c, sample.u, zm, zp)

    xm, xp, log_det = layer(*z1)
    z2 = xm, xp
    if not steps:
        return z2, *(_log_integrand(sample, mirror, z1, z2, log_det) for mirror in (1, -1))
    steps = [tuple(jnp.broadcast_to(part, z1[0].shape) for part in step) for step in steps]
    changes = [jax.jvp(layer, z1, step)[1][:2] for step in steps]
    return z2, *(_log_cell(layer, sample, mirror, z1, z2, log_det, steps, changes) for mirror in (1, -1))


def _first_box(sample):
    """Half of the plane that holds the prior of z1 and its mirror image."""
    v1, omega1 = sample.v1, sample.omega[:2]
    reach = _PRIOR_REACH * jnp.sqrt(v1)
    length = jnp.sqrt(jnp.sum(omega1**2))
    towards = length > 1e-4 * reach
    normal = jnp.where(towards, omega1 / jnp.where(towards, length, 1), jnp.array([1, 0], omega1.dtype))
    zero = jnp.zeros_like(v1)
    return _Box(normal, jnp.maximum(length - reach, 0), length + reach, zero, zero, reach)


def _coordinates(box, n, m):
    """x (n, 1) and y (n, m) of the nodes, and their steps."""
    x = box.low + (box.high - box.low) * jnp.linspace(0, 1, n, dtype=box.low.dtype)[:, None]
    y = box.offset + box.slope * x + box.half * jnp.linspace(-1, 1, m, dtype=box.low.dtype)
    return x, y, (box.high - box.low) / (n - 1), 2 * box.half / max(m - 1, 1)


def _enlarged(box, factor):
    middle, half = 0.5 * (box.low + box.high), 0.5 * factor * (box.high - box.low)
    return box._replace(low=jnp.maximum(middle - half, 0), high=middle + half, half=factor * box.half)


def _plane(normal, x, y):
    return normal[0] * x - normal[1] * y, normal[1] * x + normal[0] * y


def _edge_weight(n, dtype):
    """The trapezoidal rule's half weight at x = 0, where the half plane ends."""
    return jnp.ones((n, 1), dtype).at[0].set(0.5)


def _exact_solution(kind, c, u, z2):
    """A first-layer index z1 with A(z1) z2 = u, zeros where there is none. The other one is -z1."""
    (um, up), (zm, zp) = u, z2
    if kind == SOFTMAX:
        safe = jnp.where(zm == 0, 1, zm)
        tau, kappa = um / safe - c, (up - (c + 1) * zp) / safe
        a, b = 0.5 * (tau + 1 + kappa), 0.5 * (tau + 1 - kappa)
        found = (zm != 0) & (tau > 0) & (a > 0) & (a < 1) & (b > 0) & (b < 1)
        a, b = jnp.where(found, a, 0.75), jnp.where(found, b, 0.75)
        x, y = jnp.log(a / (1 - a)), jnp.log(b / (1 - b))
        minus = jnp.sqrt(jnp.maximum(0.5 * (x + y), jnp.finfo(x.dtype).tiny))
        z1 = minus, 0.5 * (x - y) / minus
    else:
        dm, dp = um - c * zm, up - c * zp
        scale = dm * zm + dp * zp
        found = scale > 0
        root = jnp.sqrt(jnp.where(found, scale, 1))
        z1 = dm / root, dp / root
    return tuple(jnp.where(found, z, 0) for z in z1)


def _refined(kind, sample, box, n, cut):
    """The next box: what the integrand, averaged over the cells of a grid of the last, leaves above exp(-cut)."""
    x, y, hx, hy = _coordinates(box, n, n)
    steps = _plane(box.normal, hx, hx * box.slope), _plane(box.normal, jnp.zeros_like(hy), hy)
    guess = _exact_solution(kind, sample.c, sample.u, sample.omega[2:])
    z1 = tuple(jnp.append(z, g) for z, g in zip(_plane(box.normal, x, y), guess, strict=True))
    blur = [(_BLUR * a, _BLUR * b) for a, b in steps]
    _, here, there = _folded(kind, sample, z1, blur)
    log_w = jnp.logaddexp(here, there)
    log_w = log_w - jnp.max(log_w)
    return _box_around(z1, log_w, steps, cut)


def _box_around(z1, log_w, steps, cut):
    """Box on the half plane across the principal axis of the uncentred second moment: there the fold cuts least."""
    w = jnp.exp(log_w)
    w = w / jnp.sum(w)
    mm, pp, mp = (jnp.sum(w * a * b) for a, b in ((z1[0], z1[0]), (z1[1], z1[1]), (z1[0], z1[1])))
    angle = 0.5 * jnp.arctan2(2 * mp, mm - pp)
    normal = jnp.stack([jnp.cos(angle), jnp.sin(angle)])

    def project(z):
        return normal[0] * z[0] + normal[1] * z[1], normal[0] * z[1] - normal[1] * z[0]

    x, y = project(z1)
    x, y = jnp.abs(x), jnp.where(x < 0, -y, y)
    mean_x, mean_y = jnp.sum(w * x), jnp.sum(w * y)
    var_x = jnp.sum(w * (x - mean_x) ** 2)
    slope = jnp.sum(w * (x - mean_x) * (y - mean_y)) / jnp.maximum(var_x, jnp.finfo(x.dtype).tiny)
    margins = [project(step) for step in steps]
    low, high = _extent(x, log_w, cut, sum(0.5 * jnp.abs(a) for a, _ in margins))
    left, right = _extent(y - slope * x, log_w, cut, sum(0.5 * jnp.abs(b - slope * a) for a, b in margins))
    return _Box(normal, jnp.maximum(low, 0), high, 0.5 * (left + right), slope, 0.5 * (right - left))


def _extent(values, log_w, cut, margin, axis=None):
    """Smallest and largest of the values whose weight is above the cut, and half a cell more."""
    kept = log_w > -cut
    low = jnp.min(jnp.where(kept, values, jnp.inf), axis=axis, keepdims=axis is not None)
    high = jnp.max(jnp.where(kept, values, -jnp.inf), axis=axis, keepdims=axis is not None)
    return low - margin, high + margin


def _rows(kind, sample, normal, x, centre, half, cut):
    """Per x: centre and half width, (n, 1) each, of the part of a range of y that holds the integrand."""
    y = centre + half * jnp.linspace(-1, 1, _PER_ROW, dtype=x.dtype)
    hy = half * (2 / (_PER_ROW - 1))
    blur_y = _plane(normal, jnp.zeros_like(hy), _BLUR * hy)
    _, here, there = _folded(kind, sample, _plane(normal, x, y), (blur_y,))
    log_w = jnp.logaddexp(here, there)
    low, high = _extent(y, log_w - jnp.max(log_w, axis=1, keepdims=True), cut, 0.5 * hy, axis=1)
    return 0.5 * (low + high), 0.5 * (high - low)


def _nodes(kind, points, refinements, sample):
    """Nodes Z - omega of the final grid, (4, points, points), with the log weights of z1 and of -z1."""
    box = _refined(kind, sample, _first_box(sample), _FIRST, _REFINE_CUT)
    box = jax.lax.fori_loop(
        0, refinements, lambda _, b: _refined(kind, sample, b, _BETWEEN, _REFINE_CUT), box
    )
    box = _refined(kind, sample, _enlarged(box, _ENLARGE), _LAST, _FINAL_CUT)
    x, y, hx, _ = _coordinates(box, points, 1)
    centre, half = box.offset + box.slope * x, jnp.broadcast_to(box.half, x.shape)
    centre, half = jax.lax.fori_loop(
        0, _ROWS, lambda _, r: _rows(kind, sample, box.normal, x, *r, _FINAL_CUT), (centre, half)
    )
    y = centre + half * jnp.linspace(-1, 1, points, dtype=half.dtype)
    z1 = _plane(box.normal, x, y)
    (xm, xp), here, there = _folded(kind, sample, z1)
    area = jnp.log(hx * half * (2 / (points - 1)) * _edge_weight(points, half.dtype))
    return jnp.stack([*z1, xm, xp]), here + area, there + area


def _one_sample(kind, points, refinements, c, u, omega, V):
    v1 = V[0, 0]
    ratio = V[0, 1] / v1
    v2 = V[1, 1] - V[0, 1] * ratio

    def signed(s):
        return _nodes(kind, points, refinements, _Sample(c, s * u, omega, v1, ratio, v2))

    Z, here, there = jax.vmap(signed)(jnp.array([1, -1], u.dtype))
    top = jnp.maximum(jnp.max(here), jnp.max(there))
    w, v = jnp.exp(here - top), jnp.exp(there - top)
    total = jnp.sum(w) + jnp.sum(v)
    w, v = w / total, v / total
    mirror = jnp.array([-1, -1, 1, 1], u.dtype)

    def centred(point):
        d = jnp.moveaxis(Z, 1, 0) - point[:, None, None, None]
        e = jnp.moveaxis(Z, 1, 0) * mirror[:, None, None, None] - point[:, None, None, None]
        return d.reshape(4, -1), e.reshape(4, -1)

    w, v = w.ravel(), v.ravel()
    d, e = centred(omega)
    shift = d @ w + e @ v
    d, e = centred(omega + shift)
    covariance = (d * w) @ d.T + (e * v) @ e.T
    log_evidence = top + jnp.log(total) - jnp.log(v1) - 2 * jnp.log(2 * jnp.pi)
    return log_evidence, shift, covariance


@partial(jax.jit, static_argnames=("kind", "points", "block"))
def _batch(kind, points, block, refinements, c, u, omega, V):
    def one(sample):
        return _one_sample(kind, points, refinements, c, *sample)

    return jax.lax.map(one, (u, omega, V), batch_size=block)


def posterior_moments(kind, c, u, omega, V, *, points=32, refinements=None, block=None):
    u, omega, V = jnp.asarray(u), jnp.asarray(omega), jnp.asarray(V)
    n = u.shape[0]
    V = jnp.broadcast_to(V, (n, 2, 2))
    if refinements is None:
        refinements = 4
    return _batch(kind, points, block or 64, refinements, jnp.asarray(c, u.dtype), u, omega, V)
