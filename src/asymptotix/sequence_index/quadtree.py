"""Two-layer attention channel by adaptive cubature, compiled with numba: the fast path on a CPU.

Two tokens, rank one, in the rotated token basis minus = (1,-1)/sqrt2, plus = (1,1)/sqrt2. The output fixes the last
layer's pre-activation u up to a common sign s, and u = A(z1) z2, so the posterior of Z = (z1, z2) lives on the plane
of z1 (times the two signs):

    Z_out = sum_s int dz1  N(z1, z2; omega, V) / |det A(z1)|,        z2 = A(z1)^{-1} s u.

Square cells of that plane are split until they resolve the Gaussian, and dropped when a *rigorous* lower bound of its
energy (local Jacobian plus a bound of the second derivative over the cell) says that nothing in them matters. So a
peak of any width is found: V may be as small as 1e-6.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from asymptotix.sequence_index.activation_kinds import LINEAR as LINEAR
from asymptotix.sequence_index.activation_kinds import SOFTMAX

_STACK = 4096
_COARSE = 8  # cells per side before any splitting
_TAIL = 0.12  # cells far down the tail may be coarser by this much per unit of energy
_BEND = 0.15  # of the second-derivative bound; 1/2 is Taylor's, the bound itself is loose by more than three
_BOX = 6.0  # half width of the region, in prior standard deviations of z1


_compiled = njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})  # nan, inf kept


@_compiled
def _mixing(c, zm, zp):
    """k = c + tau and kappa of the softmax layer: A = [[k, 0], [kappa, c+1]] on (minus, plus).

    tau = sinh(zm^2) / (cosh(zm^2) + cosh(zm zp)), kappa = sinh(zm zp) / (the same), free of cancellation and overflow.
    """
    e = math.exp(-zm * zm)
    f = math.exp(-abs(zm * zp))
    ee = e * e
    bottom = f + e * (1.0 + f * f) + ee * f
    kappa = e * (1.0 - f * f) / bottom
    return c + (1.0 - ee) * f / bottom, kappa if zm * zp > 0 else -kappa


@_compiled
def _second_layer(kind, c, zm, zp, um, up):
    """z2 = A(z1)^{-1} u and det A."""
    if kind == SOFTMAX:
        k, kappa = _mixing(c, zm, zp)
        xm = um / k
        return xm, (up - kappa * xm) / (c + 1.0), k * (c + 1.0)
    s = c + zm * zm + zp * zp
    t = (zm * um + zp * up) / s
    return (um - zm * t) / c, (up - zp * t) / c, c * s


@_compiled
def _smallest(x, slope, radius):
    """Lower bound of |x| over a ball on which x moves by at most slope * radius."""
    return max(abs(x) - slope * radius, 0.0)


@_compiled
def _softmax_slopes(c, zm, zp, um, up, radius):
    """Frobenius norm of dz2/dz1 at the centre, and a bound of its second derivative within the radius."""
    x, y = zm * zm + zm * zp, zm * zm - zm * zp
    k, kappa = _mixing(c, zm, zp)
    a, b = 0.5 * (k - c + 1 + kappa), 0.5 * (k - c + 1 - kappa)
    da, db = a * (1 - a), b * (1 - b)
    am, ap = da * (2 * zm + zp), da * zm
    bm, bp = db * (2 * zm - zp), -db * zm
    z = um / k
    z_m, z_p = -z / k * (am + bm), -z / k * (ap + bp)
    w_m = -((am - bm) * z + kappa * z_m) / (c + 1)
    w_p = -((ap - bp) * z + kappa * z_p) / (c + 1)
    jacobian = math.sqrt(z_m * z_m + z_p * z_p + w_m * w_m + w_p * w_p)

    gx = math.sqrt((abs(2 * zm + zp) + 2.24 * radius) ** 2 + (abs(zm) + radius) ** 2)
    gy = math.sqrt((abs(2 * zm - zp) + 2.24 * radius) ** 2 + (abs(zm) + radius) ** 2)
    ex = math.exp(-_smallest(x, gx, radius))
    ey = math.exp(-_smallest(y, gy, radius))
    first = min(0.25, ex) * gx + min(0.25, ey) * gy
    second = min(0.0963, ex) * gx * gx + min(0.25, ex) * 2.42 + min(0.0963, ey) * gy * gy + min(0.25, ey) * 2.42
    least = max(k - first * radius, c)
    if least <= 0.0:
        return jacobian, math.inf, 0.0
    zmax = abs(um) / least
    slope = zmax / least * first
    bend = zmax / least * (second + 2 * first * first / least)
    return jacobian, bend + (bend + 2 * first * slope + second * zmax) / (c + 1), 0.8 * math.sqrt(min(least, 1.0))


@_compiled
def _linear_slopes(c, zm, zp, um, up, radius):
    s = c + zm * zm + zp * zp
    t = (zm * um + zp * up) / s
    jm_m = -(t + zm * (um - 2 * zm * t) / s) / c
    jm_p = -(zm * (up - 2 * zp * t) / s) / c
    jp_m = -(zp * (um - 2 * zm * t) / s) / c
    jp_p = -(t + zp * (up - 2 * zp * t) / s) / c
    jacobian = math.sqrt(jm_m * jm_m + jm_p * jm_p + jp_m * jp_m + jp_p * jp_p)
    nearest = max(math.sqrt(zm * zm + zp * zp) - radius, 0.0)
    least = c + nearest * nearest
    return jacobian, 20.0 * math.sqrt(um * um + up * up) / (least * c), 0.8 * math.sqrt(least)


@_compiled
def _energy(kind, c, zm, zp, um, up, om, v1, ratio, v2):
    xm, xp, det = _second_layer(kind, c, zm, zp, um, up)
    dm, dp = zm - om[0], zp - om[1]
    em, ep = xm - om[2] - ratio * dm, xp - om[3] - ratio * dp
    return 0.5 * (dm * dm + dp * dp) / v1 + 0.5 * (em * em + ep * ep) / v2, xm, xp, det


@_compiled
def _mode_guess(kind, c, um, up, zm, zp):
    """A first-layer index z1 with A(z1) (zm, zp) = u; nan where there is none. The other one is -z1."""
    if kind == SOFTMAX:
        if zm == 0.0:
            return math.nan, math.nan
        tau = um / zm - c
        kappa = (up - (c + 1) * zp) / zm
        a, b = 0.5 * (tau + 1 + kappa), 0.5 * (tau + 1 - kappa)
        if not (0.0 < a < 1.0 and 0.0 < b < 1.0):
            return math.nan, math.nan
        la, lb = math.log(a / (1 - a)), math.log(b / (1 - b))
        if la + lb <= 0:
            return math.nan, math.nan
        gm = math.sqrt(0.5 * (la + lb))
        return gm, 0.5 * (la - lb) / gm
    dm, dp = um - c * zm, up - c * zp
    scale = dm * zm + dp * zp
    if scale <= 0:
        return math.nan, math.nan
    return dm / math.sqrt(scale), dp / math.sqrt(scale)


@_compiled
def _descend(kind, c, zm, zp, um, up, om, v1, ratio, v2):
    """A few damped Gauss-Newton steps on the energy: a good early value makes the search drop cells sooner."""
    value, xm, xp, _ = _energy(kind, c, zm, zp, um, up, om, v1, ratio, v2)
    step = 1e-6
    for _ in range(8):
        am, ap, _ = _second_layer(kind, c, zm + step, zp, um, up)
        bm, bp, _ = _second_layer(kind, c, zm, zp + step, um, up)
        j00, j10 = (am - xm) / step - ratio, (ap - xp) / step
        j01, j11 = (bm - xm) / step, (bp - xp) / step - ratio
        dm, dp = zm - om[0], zp - om[1]
        em, ep = xm - om[2] - ratio * dm, xp - om[3] - ratio * dp
        g0 = dm / v1 + (j00 * em + j10 * ep) / v2
        g1 = dp / v1 + (j01 * em + j11 * ep) / v2
        h00 = 1 / v1 + (j00 * j00 + j10 * j10) / v2
        h11 = 1 / v1 + (j01 * j01 + j11 * j11) / v2
        h01 = (j00 * j01 + j10 * j11) / v2
        det = h00 * h11 - h01 * h01
        pm, pp = -(h11 * g0 - h01 * g1) / det, -(h00 * g1 - h01 * g0) / det
        length = math.sqrt(pm * pm + pp * pp)
        if not length < 1e6:
            return value
        scale = min(1.0, 1.0 / length)
        for _ in range(6):
            trial, ym, yp, _ = _energy(kind, c, zm + scale * pm, zp + scale * pp, um, up, om, v1, ratio, v2)
            if trial < value:
                break
            scale *= 0.3
        if not trial < value - 1e-3:
            return min(value, trial)
        zm, zp, value, xm, xp = zm + scale * pm, zp + scale * pp, trial, ym, yp
    return value


@_compiled
def _lowest_energy(kind, c, um, up, om, v1, ratio, v2, half, stack):
    """Fill the stack with the coarse cells of both signs; the lowest energy among centres and guessed modes."""
    best = math.inf
    n = 0
    for s in (-1.0, 1.0):
        lowest, bm, bp = math.inf, 0.0, 0.0
        for i in range(_COARSE):
            for j in range(_COARSE):
                zm = om[0] + (2 * i + 1 - _COARSE) * half
                zp = om[1] + (2 * j + 1 - _COARSE) * half
                stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3] = zm, zp, half, s
                n += 1
                value = _energy(kind, c, zm, zp, s * um, s * up, om, v1, ratio, v2)[0]
                if value < lowest:
                    lowest, bm, bp = value, zm, zp
        gm, gp = _mode_guess(kind, c, s * um, s * up, om[2], om[3])
        if gm == gm:
            f = 1.0 if gm * om[0] + gp * om[1] > 0 else -1.0
            best = min(best, _descend(kind, c, f * gm, f * gp, s * um, s * up, om, v1, ratio, v2))
        best = min(best, _descend(kind, c, bm, bp, s * um, s * up, om, v1, ratio, v2))
    return best, n


@_compiled
def _add_leaf(kind, c, zm0, zp0, h, um, up, om, v1, ratio, v2, reference, gx, gw, out):
    """Add the moments of one cell, in units of exp(-reference); returns the (perhaps deeper) reference energy."""
    o0, o1, o2, o3 = om[0], om[1], om[2], om[3]
    m0 = m1 = m2 = m3 = m4 = 0.0
    m00 = m01 = m02 = m03 = m11 = m12 = m13 = m22 = m23 = m33 = 0.0
    for i in range(gx.shape[0]):
        zm = zm0 + h * gx[i]
        d0 = zm - o0
        for j in range(gx.shape[0]):
            zp = zp0 + h * gx[j]
            d1 = zp - o1
            xm, xp, det = _second_layer(kind, c, zm, zp, um, up)
            d2, d3 = xm - o2, xp - o3
            em, ep = d2 - ratio * d0, d3 - ratio * d1
            energy = 0.5 * (d0 * d0 + d1 * d1) / v1 + 0.5 * (em * em + ep * ep) / v2
            if energy > reference + 60.0:
                continue
            if energy < reference - 30.0:  # a deeper peak than any seen so far: change the scale
                factor = math.exp(energy - reference)
                out *= factor
                m0, m1, m2, m3, m4 = m0 * factor, m1 * factor, m2 * factor, m3 * factor, m4 * factor
                m00, m01, m02, m03, m11 = m00 * factor, m01 * factor, m02 * factor, m03 * factor, m11 * factor
                m12, m13, m22, m23, m33 = m12 * factor, m13 * factor, m22 * factor, m23 * factor, m33 * factor
                reference = energy
            f = gw[i] * gw[j] * math.exp(reference - energy) / det
            f0, f1, f2, f3 = f * d0, f * d1, f * d2, f * d3
            m0, m1, m2, m3, m4 = m0 + f, m1 + f0, m2 + f1, m3 + f2, m4 + f3
            m00, m01, m02, m03 = m00 + f0 * d0, m01 + f0 * d1, m02 + f0 * d2, m03 + f0 * d3
            m11, m12, m13 = m11 + f1 * d1, m12 + f1 * d2, m13 + f1 * d3
            m22, m23, m33 = m22 + f2 * d2, m23 + f2 * d3, m33 + f3 * d3
    area = h * h
    for k, m in enumerate((m0, m1, m2, m3, m4, m00, m01, m02, m03, m11, m12, m13, m22, m23, m33)):
        out[k] += area * m
    return reference


@_compiled
def _moments(kind, c, um, up, om, v1, ratio, v2, fineness, cut, gx, gw, stack, out):
    """Unnormalised 0th, 1st, 2nd moments of Z - omega in ``out`` (15 numbers); returns the log of their scale."""
    s1, s2 = math.sqrt(v1), math.sqrt(v2)
    out[:] = 0.0
    best, n = _lowest_energy(kind, c, um, up, om, v1, ratio, v2, _BOX * s1 / _COARSE, stack)
    reference = best
    while n > 0:
        n -= 1
        zm0, zp0, h, s = stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3]
        radius = 1.41422 * h
        centre, xm, xp, det = _energy(kind, c, zm0, zp0, s * um, s * up, om, v1, ratio, v2)
        best = min(best, centre)
        if kind == SOFTMAX:
            jac, bend, intrinsic = _softmax_slopes(c, zm0, zp0, s * um, s * up, radius)
        else:
            jac, bend, intrinsic = _linear_slopes(c, zm0, zp0, s * um, s * up, radius)
        jac += abs(ratio)
        dm, dp = zm0 - om[0], zp0 - om[1]
        near1 = math.sqrt(dm * dm + dp * dp) - radius
        em, ep = xm - om[2] - ratio * dm, xp - om[3] - ratio * dp
        near2 = math.sqrt(em * em + ep * ep) - (jac + _BEND * bend * radius) * radius
        least = 0.0
        if near1 > 0:
            least += 0.5 * near1 * near1 / v1
        if near2 > 0:
            least += 0.5 * near2 * near2 / v2
        if least > best + cut:
            continue
        width = min(s1, s2 / (jac + 0.1 * min(bend * radius, 10.0 * jac) + 1e-12), intrinsic)
        if h > fineness * width * (1.0 + _TAIL * max(least - best, 0.0)) and n < _STACK - 4:
            for fm in (-0.5, 0.5):
                for fp in (-0.5, 0.5):
                    stack[n, 0], stack[n, 1] = zm0 + fm * h, zp0 + fp * h
                    stack[n, 2], stack[n, 3] = 0.5 * h, s
                    n += 1
            continue
        reference = _add_leaf(kind, c, zm0, zp0, h, s * um, s * up, om, v1, ratio, v2, reference, gx, gw, out)
    return -reference - 2 * math.log(2 * math.pi) - math.log(v1) - math.log(v2)


@_compiled
def _block(kind, c, u, omega, V, fineness, cut, gx, gw, log_evidence, shift, covariance):
    stack = np.empty((_STACK, 4))
    out = np.empty(15)
    for n in range(u.shape[0]):
        v1 = V[n, 0, 0]
        ratio = V[n, 0, 1] / v1
        v2 = V[n, 1, 1] - V[n, 0, 1] * ratio
        scale = _moments(kind, c, u[n, 0], u[n, 1], omega[n], v1, ratio, v2, fineness, cut, gx, gw, stack, out)
        if not out[0] > 0.0:
            log_evidence[n] = math.nan
            shift[n, :] = math.nan
            covariance[n, :, :] = math.nan
            continue
        log_evidence[n] = scale + math.log(out[0])
        for i in range(4):
            shift[n, i] = out[1 + i] / out[0]
        q = 5
        for i in range(4):
            for j in range(i, 4):
                covariance[n, i, j] = out[q] / out[0] - shift[n, i] * shift[n, j]
                covariance[n, j, i] = covariance[n, i, j]
                q += 1


def posterior_moments(kind, c, u, omega, V, *, fineness=1.3, cut=12.0, order=4, threads=None):
    """log Z_out, E[Z|y] - omega and Cov[Z|y] for a batch of samples.

    Parameters
    ----------
    kind : int
        ``SOFTMAX`` or ``LINEAR``.
    c : float
        Skip strength.
    u : array (n, 2)
        Last pre-activation (minus, plus), up to a common sign.
    omega : array (n, 4)
        Mean of Z in the order z1-, z1+, z2-, z2+.
    V : array (n, 2, 2)
        Covariance of (z1, z2) per token.
    fineness : float
        Largest half width of a cell in units of the local width of the integrand. 1.6 with order 4 gives about
        5e-5 of the posterior standard deviation in the mean; 1.2 gives 1e-5.
    cut : float
        Cells whose integrand is below exp(-cut) of the peak are dropped.
    """
    n = u.shape[0]
    u, omega, V = (np.ascontiguousarray(x, dtype=np.float64) for x in (u, omega, V))
    gx, gw = np.polynomial.legendre.leggauss(order)
    results = np.empty(n), np.empty((n, 4)), np.empty((n, 4, 4))
    threads = threads or _available_cores()
    # Small blocks: the cost of a sample varies, and a thread that is done takes the next block.
    edges = np.arange(0, n + 256, 256)
    blocks = [slice(a, min(b, n)) for a, b in zip(edges[:-1], edges[1:], strict=True) if a < n]

    def work(s):
        _block(kind, float(c), u[s], omega[s], V[s], fineness, cut, gx, gw, *(r[s] for r in results))

    if threads == 1 or len(blocks) == 1:
        for s in blocks:
            work(s)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, blocks))
    return results


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
