"""Two-layer attention channel on grids of fixed shape, in JAX: the path for accelerators, and for float32.

The integral is the same as in the adaptive cubature of ``quadtree``: two tokens, rank one, the rotated token basis
minus = (1,-1)/sqrt2, plus = (1,1)/sqrt2, and

    Z_out = sum_s int dz1  N(z1, z2; omega, V) / |det A(z1)|,        z2 = A(z1)^{-1} s u.

z2 is even in z1, so z1 and -z1 are taken together and the integral is over a half plane. For each sign s a few
passes narrow a box on that half plane, from the whole prior down to the peak. In a pass the grid may be too
coarse for the peak, so each node represents its cell: the Gaussian of z2 is averaged over the cell in closed form,
with z2 linearised there. A peak much narrower than a cell thus keeps its mass.

The coordinates of the box are x along the normal of the half plane and y along its edge. In the last grid every
x has its own y-range, which follows bent and tapering ridges. The trapezoidal rule converges exponentially in
both: in y the integrand is smooth and small at the ends, and its integral over y is even in x.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .activation_kinds import LINEAR, SOFTMAX

_REACH = 5.5  # half width of the first box, in prior standard deviations of z1
_SIDE = 18  # points per side of the grids that find the box, and per row of the grid that finds the y-ranges
_CUT, _LAST_CUT = 6.5, 10.5  # the next box excludes cells below exp(-cut) of the peak
_ENLARGED = 1.3  # factor of the box before the last pass: restores mass that the smaller cut of earlier passes excluded
_BLUR = 0.4  # standard deviation of the averaging over a cell, in grid steps
_TRUST = 0.15  # the error of a linearisation must fit a cell smaller by this factor
_PIECE = 2048  # samples per compiled call; a sixteenth of it for small batches
_STRETCH = 4.0  # largest density of rows of the last grid, relative to their average density, approximately


class _Sample(NamedTuple):
    """One sample: z1 ~ N(omega1, v1), z2 given z1 ~ N(omega2 + ratio (z1 - omega1), v2), and A(z1) z2 = u."""

    c: jax.Array
    u: jax.Array
    omega: jax.Array
    v1: jax.Array
    ratio: jax.Array
    v2: jax.Array


class _Box(NamedTuple):
    """Box low <= x <= high along the normal, |y - middle - slope (x - mean)| <= half along the edge; x >= 0."""

    normal: jax.Array
    low: jax.Array
    high: jax.Array
    mean: jax.Array
    middle: jax.Array
    slope: jax.Array
    half: jax.Array


# --- the integrand ------------------------------------------------------------------------------------------


def _second_layer(kind, c, u, zm, zp):
    """Return the components minus and plus of z2 = A(z1)^{-1} u, and det A, for z1 = (zm, zp) and skip strength c."""
    um, up = u
    if kind == SOFTMAX:
        p = jnp.tanh(0.5 * zm * (zm + zp))
        q = jnp.tanh(0.5 * zm * (zm - zp))
        k, kappa = c + 0.5 * (p + q), 0.5 * (p - q)
        xm = um / k
        return xm, (up - kappa * xm) / (c + 1), k * (c + 1)
    s = c + zm * zm + zp * zp
    t = (zm * um + zp * up) / s
    return (um - zm * t) / c, (up - zp * t) / c, c * s


def _exact_solution(kind, c, u, z2):
    """Return z1 = (minus, plus) with A(z1) z2 = u, zeros where there is none; -z1 is the other solution."""
    (um, up), (zm, zp) = u, z2
    if kind == SOFTMAX:
        safe = jnp.where(zm == 0, 1, zm)
        tau, kappa = um / safe - c, (up - (c + 1) * zp) / safe
        a, b = 0.5 * (tau + 1 + kappa), 0.5 * (tau + 1 - kappa)
        found = (zm != 0) & (tau > 0) & (a > 0) & (a < 1) & (b > 0) & (b < 1)
        a, b = jnp.where(found, a, 0.75), jnp.where(found, b, 0.75)
        x, y = jnp.log(a / (1 - a)), jnp.log(b / (1 - b))
        minus = jnp.sqrt(jnp.maximum(0.5 * (x + y), jnp.finfo(x.dtype).eps))
        z1 = minus, 0.5 * (x - y) / minus
    else:
        dm, dp = um - c * zm, up - c * zp
        scale = dm * zm + dp * zp
        found = scale > 0
        root = jnp.sqrt(jnp.where(found, scale, 1))
        z1 = dm / root, dp / root
    return tuple(jnp.where(found, z, 0) for z in z1)


def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1]


def _cross(a, b):
    return a[0] * b[1] - a[1] * b[0]


def _residuals(sample, mirror, z1, z2):
    """Return z1 - omega1, and z2 minus its mean given z1, both (minus, plus); for -z1 if ``mirror`` is -1."""
    d = mirror * z1[0] - sample.omega[0], mirror * z1[1] - sample.omega[1]
    return d, (z2[0] - sample.omega[2] - sample.ratio * d[0], z2[1] - sample.omega[3] - sample.ratio * d[1])


def _energies(kind, sample, z1):
    """Return z2 = (minus, plus), det A, and minus the exponent of the prior of (z1, z2) at z1 and at -z1."""
    xm, xp, det = _second_layer(kind, sample.c, sample.u, *z1)

    def at(mirror):
        d, r = _residuals(sample, mirror, z1, (xm, xp))
        return 0.5 * _dot(d, d) / sample.v1 + 0.5 * _dot(r, r) / sample.v2

    return (xm, xp), det, at(1), at(-1)


def _determinant(G, v2):
    """Return the determinant of S = v2 I + sum_g g g^T for one or two vectors g of the list G, without cancellation."""
    return v2 * v2 + v2 * sum(_dot(g, g) for g in G) + (_cross(*G) ** 2 if len(G) == 2 else 0)


def _log_cells(kind, sample, z1, steps):
    """Return the log of the integrand at z1 plus its value at -z1, both averaged over a Gaussian cell around z1.

    The cell has the covariance sum_s s s^T over the one or two vectors s of ``steps``. With r the residual of z2,
    linear in the cell with slopes G, the average of N(r; 0, v2) is N(r; 0, S), S = v2 I + G G^T, and
    -log N = m.m/2 + |r(m)|^2/(2 v2) + log det S / 2, where m = -G^T S^{-1} r leads to the point of the cell where the
    integrand is largest. The residual is evaluated again at that point, without linearisation. Its energy in a cell
    smaller by the factor _TRUST is added to the energy of the cell. Without this term places where z2 varies steeply
    over less than a cell would look like peaks.
    """

    def layer(zm, zp):
        return _second_layer(kind, sample.c, sample.u, zm, zp)

    v2 = sample.v2
    steps = [tuple(jnp.broadcast_to(part, z1[0].shape) for part in step) for step in steps]
    *z2, volume = layer(*z1)
    changes = [jax.jvp(layer, z1, step)[1] for step in steps]
    moves = list(zip(z1, zip(*steps, strict=True), strict=True))

    def at(mirror):
        d, r = _residuals(sample, mirror, z1, z2)
        own = mirror * sample.ratio
        G = [(b[0] - own * a[0], b[1] - own * a[1]) for a, b in zip(steps, changes, strict=True)]
        det = _determinant(G, v2)
        ways = [-(v2 * _dot(g, r) + sum(_cross(f, g) * _cross(f, r) for f in G)) / det for g in G]
        there = [z + sum(way * part for way, part in zip(ways, a, strict=True)) for z, a in moves]
        _, left = _residuals(sample, mirror, there, layer(*there))
        G = [(_TRUST * g[0], _TRUST * g[1]) for g in G]
        unexplained = (v2 * _dot(left, left) + sum(_cross(g, left) ** 2 for g in G)) / _determinant(G, v2)
        square = sum(way * way for way in ways) + unexplained
        return -0.5 * (_dot(d, d) / sample.v1 + square + jnp.log(det * volume**2))

    # vmap keeps one copy of this code for both signs, because the code takes long to compile.
    return jnp.logaddexp(*jax.vmap(at)(jnp.array([1, -1], v2.dtype)))


# --- where the mass is --------------------------------------------------------------------------------------


def _plane(normal, x, y):
    return normal[0] * x - normal[1] * y, normal[1] * x + normal[0] * y


def _first_box(sample):
    """Return a box on the half plane that contains the prior of z1 or its mirror image."""
    v1, omega1 = sample.v1, sample.omega[:2]
    reach = _REACH * jnp.sqrt(v1)
    length = jnp.sqrt(jnp.sum(omega1**2))
    aside = length > 1e-4 * reach
    normal = jnp.where(aside, omega1 / jnp.where(aside, length, 1), jnp.array([1, 0], omega1.dtype))
    zero = jnp.zeros_like(v1)
    return _Box(normal, jnp.maximum(length - reach, 0), length + reach, length, zero, zero, reach)


def _enlarged(box, factor):
    centre, half = 0.5 * (box.low + box.high), 0.5 * factor * (box.high - box.low)
    return box._replace(low=jnp.maximum(centre - half, 0), high=centre + half, half=factor * box.half)


def _next_box(kind, sample, box, cut):
    """Return a box around all cells of a grid on ``box``, and the exact solution, that exceed exp(-cut) of the peak."""
    t = jnp.linspace(0, 1, _SIDE, dtype=box.low.dtype)
    x = box.low + (box.high - box.low) * t[:, None]
    y = box.middle + box.slope * (x - box.mean) + box.half * (2 * t - 1)
    hx, hy = (box.high - box.low) / (_SIDE - 1), 2 * box.half / (_SIDE - 1)
    steps = _plane(box.normal, hx, hx * box.slope), _plane(box.normal, jnp.zeros_like(hy), hy)
    solution = _exact_solution(kind, sample.c, sample.u, sample.omega[2:])
    z1 = tuple(jnp.append(z, extra) for z, extra in zip(_plane(box.normal, x, y), solution, strict=True))
    log_w = _log_cells(kind, sample, z1, [(_BLUR * a, _BLUR * b) for a, b in steps])
    # Without the barrier every following sum is compiled with a copy of the whole integrand.
    z1, log_w = jax.lax.optimization_barrier((z1, log_w))
    return _box_around(z1, log_w - jnp.max(log_w), steps, cut)


def _box_around(z1, log_w, steps, cut):
    """Return a box around the cells at points z1 with log-weights ``log_w`` above -cut; ``steps`` are a cell's sides.

    Its normal is the principal axis of the uncentred second moment: the fold at x = 0 then cuts least mass.
    """
    w = jnp.exp(log_w)
    w = w / jnp.sum(w)
    mm, pp, mp = (jnp.sum(w * a * b) for a, b in ((z1[0], z1[0]), (z1[1], z1[1]), (z1[0], z1[1])))
    angle = 0.5 * jnp.arctan2(2 * mp, mm - pp)
    normal = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    x, y = _dot(normal, z1), _cross(normal, z1)
    x, y = jnp.abs(x), jnp.where(x < 0, -y, y)
    mean = jnp.sum(w * x)
    variance = jnp.sum(w * (x - mean) ** 2)
    slope = jnp.sum(w * (x - mean) * y) / jnp.maximum(variance, jnp.finfo(x.dtype).tiny)
    along, across = ([f(normal, step) for step in steps] for f in (_dot, _cross))
    low, high = _extent(x, log_w, cut, sum(0.5 * jnp.abs(a) for a in along))
    margin = sum(0.5 * jnp.abs(b - slope * a) for a, b in zip(along, across, strict=True))
    left, right = _extent(y - slope * (x - mean), log_w, cut, margin)
    return _Box(normal, jnp.maximum(low, 0), high, mean, 0.5 * (left + right), slope, 0.5 * (right - left))


def _extent(values, log_w, cut, margin, axis=None):
    """Return the least and the largest value with log-weight above -cut, moved apart by the margin and by rounding."""
    kept = log_w > -cut
    low = jnp.min(jnp.where(kept, values, jnp.inf), axis=axis, keepdims=axis is not None)
    high = jnp.max(jnp.where(kept, values, -jnp.inf), axis=axis, keepdims=axis is not None)
    margin = margin + 8 * jnp.finfo(low.dtype).eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
    return low - margin, high + margin


# --- the last grid ------------------------------------------------------------------------------------------


def _rows(box, n):
    """Return x of the n rows of the last grid, (n, 1), and their weights; rows are denser where there is more mass.

    x(t), 0 <= t <= 1, is a Moebius map or, for a box that begins at the fold, an odd cubic, which keeps the integrand
    even; x(1/2) is about the mean of x. It must be cheap, because compilers evaluate it once per node.
    """
    t = jnp.linspace(0, 1, n, dtype=box.low.dtype)[:, None]
    width = box.high - box.low
    at = jnp.clip((box.mean - box.low) / width, 0.01, 0.99)
    folded = box.low == 0
    k = jnp.clip((1 - at) / at, 1 / _STRETCH, _STRETCH)
    g = jnp.clip((0.5 - at) / jnp.maximum(at - 0.125, 1e-3), 0, _STRETCH)
    bottom = t + k * (1 - t)
    x = jnp.where(folded, t * (1 + g * t * t) / (1 + g), t / bottom)
    dx = jnp.where(folded, (1 + 3 * g * t * t) / (1 + g), k / bottom**2)
    half_at_the_edge = jnp.where(t == 0, 0.5, 1).astype(t.dtype)
    return box.low + width * x, width * dx * half_at_the_edge / (n - 1)


def _row_ranges(kind, sample, box, x):
    """Return for every x (n, 1) the centre and the half width (n, 1) of the y-range above exp(-10.5) of its peak."""
    y = box.middle + box.slope * (x - box.mean) + box.half * jnp.linspace(-1, 1, _SIDE, dtype=x.dtype)
    hy = 2 * box.half / (_SIDE - 1)
    blur = _plane(box.normal, jnp.zeros_like(hy), _BLUR * hy)
    log_w = jax.lax.optimization_barrier(_log_cells(kind, sample, _plane(box.normal, x, y), [blur]))
    low, high = _extent(y, log_w - jnp.max(log_w, axis=1, keepdims=True), _LAST_CUT, 0.5 * hy, axis=1)
    return 0.5 * (low + high), 0.5 * (high - low)


def _nodes(kind, points, refinements, sample):
    """Return Z at the nodes of the last grid, (4, points, points), their weights / det A, and the energies at +-z1."""

    def narrower(i, box):
        last = i == refinements - 1
        box = _enlarged(box, jnp.where(last, _ENLARGED, 1).astype(box.low.dtype))
        return _next_box(kind, sample, box, jnp.where(last, _LAST_CUT, _CUT))

    box = jax.lax.fori_loop(0, refinements, narrower, _first_box(sample))
    x, dx = _rows(box, points)
    centre, half = _row_ranges(kind, sample, box, x)
    z1 = _plane(box.normal, x, centre + half * jnp.linspace(-1, 1, points, dtype=x.dtype))
    z2, det, here, there = _energies(kind, sample, z1)
    return jnp.stack([*z1, *z2]), dx * half * (2 / (points - 1)) / det, here, there


def _one_sample(kind, points, refinements, c, u, omega, V):
    v1 = V[0, 0]
    ratio = V[0, 1] / v1
    v2 = V[1, 1] - V[0, 1] * ratio

    def of_sign(s):
        return _nodes(kind, points, refinements, _Sample(c, s * u, omega, v1, ratio, v2))

    nodes = jax.vmap(of_sign, out_axes=(1, 0, 0, 0))(jnp.array([1, -1], u.dtype))
    Z, *weights = jax.lax.optimization_barrier(nodes)
    Z, (measure, here, there) = Z.reshape(4, -1), (x.ravel() for x in weights)
    mirrored = Z * jnp.array([-1, -1, 1, 1], u.dtype)[:, None]
    least = jnp.minimum(jnp.min(here), jnp.min(there))
    w, v = measure * jnp.exp(least - here), measure * jnp.exp(least - there)
    total = jnp.sum(w) + jnp.sum(v)
    w, v = jax.lax.optimization_barrier((w / total, v / total))
    # Sums instead of matrix products: an accelerator rounds products to 10 bits, and they take long to compile.
    shift = jnp.sum((Z - omega[:, None]) * w + (mirrored - omega[:, None]) * v, axis=1)
    # Z is centred before it is squared: in float32 the posterior may be narrower than the rounding of E[Z]^2.
    d, e = Z - (omega + shift)[:, None], mirrored - (omega + shift)[:, None]
    covariance = jnp.sum(d[:, None] * d[None] * w + e[:, None] * e[None] * v, axis=2)
    return jnp.log(total) - least - jnp.log(v1 * v2) - 2 * jnp.log(2 * jnp.pi), shift, covariance


@partial(jax.jit, static_argnames=("kind", "points", "block"))
def _one_piece(kind, c, u, omega, V, *, points, refinements, block):
    def one(sample):
        return _one_sample(kind, points, refinements, c, *sample)

    return jax.lax.map(one, (u, omega, V), batch_size=block)


@partial(jax.jit, static_argnames=("dtype", "piece"))
def _pieces(samples, *, dtype, piece):
    """Cut the samples into pieces of one size; the last piece is filled up with copies of the first sample."""
    n = samples[0].shape[0]

    def cut(x):
        x = x.astype(dtype)
        x = jnp.concatenate([x, jnp.broadcast_to(x[:1], (-n % piece, *x.shape[1:]))])
        return [x[start : start + piece] for start in range(0, n, piece)]

    return list(zip(*map(cut, samples), strict=True))


@partial(jax.jit, static_argnames="n")
def _joined(results, *, n):
    return tuple(jnp.concatenate(column)[:n] for column in zip(*results, strict=True))


def posterior_moments(kind, c, u, omega, V, *, points=32, refinements=5, block=None):
    """Return the moments of a batch of samples: log Z_out, E[Z|y] - omega and Cov[Z|y].

    The precision is that of the inputs. Other values of ``c``, ``V`` or ``refinements`` need no new compilation.

    Parameters
    ----------
    kind : int
        ``SOFTMAX`` or ``LINEAR``; static under ``jax.jit``.
    c : float or scalar array
        Skip strength.
    u : array (n, 2)
        Last pre-activation (minus, plus), up to a common sign.
    omega : array (n, 4)
        Mean of Z in the order z1-, z1+, z2-, z2+.
    V : array (2, 2) or (n, 2, 2)
        Covariance of (z1, z2) per token.
    points : int
        Points per side of the last grid.
    refinements : int
        Passes that narrow the box. Each narrows a peak too small for the grid by a factor of about four.
    block : int, optional
        Samples computed at once; the memory is about block x points^2 x 100 bytes in float32. By default 64
        on a CPU, so that they stay in the cache, and 2048 on an accelerator.

    Returns
    -------
    log_evidence : array (n,)
    shift : array (n, 4)
    covariance : array (n, 4, 4)
    """
    if kind not in (SOFTMAX, LINEAR):
        raise ValueError(f"kind must be SOFTMAX ({SOFTMAX}) or LINEAR ({LINEAR}), got {kind!r}")
    dtype = jnp.result_type(u, omega, V, jnp.float32)
    n = u.shape[0]
    V = np.broadcast_to(V, (n, 2, 2)) if V.ndim == 2 else V
    block = block or (64 if jax.default_backend() == "cpu" else _PIECE)
    piece = max(block, _PIECE if n > _PIECE // 16 else _PIECE // 16)
    piece += -piece % block
    # One program for any number of samples: it is the only one in this file that takes long to compile.
    options = {"points": points, "refinements": refinements, "block": block}
    pieces = _pieces((u, omega, V), dtype=dtype, piece=piece)
    return _joined([_one_piece(kind, jnp.asarray(c, dtype), *part, **options) for part in pieces], n=n)
