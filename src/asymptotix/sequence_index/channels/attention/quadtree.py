"""Two-layer attention channel by adaptive cubature, compiled with numba: the fast path on a CPU.

Two tokens, rank one, in the rotated token basis minus = (1,-1)/sqrt2, plus = (1,1)/sqrt2. The output fixes the last
layer's pre-activation u up to a common sign s, and u = A(z1) z2, so the posterior of Z = (z1, z2) is a density on the
plane of z1, one for each of the two signs:

    Z_out = sum_s int dz1  N(z1, z2; omega, V) / |det A(z1)|,        z2 = A(z1)^{-1} s u.

z2 is even in z1, so that z1 and -z1, and both signs, are taken together on the half plane z1- >= 0. Its cells are
split, along one side or both, until they resolve the Gaussian. A cell is dropped when a lower bound of the Gaussian's
energy over the cell shows that its mass is negligible; the bound comes from the Jacobian at the centre and a bound of
the second derivative, and from the range of the mixing. The search thus finds a peak of any width: V may be as small as
1e-6. With a weak skip connection z2 changes on a scale of sqrt(c) across z1- = 0, and hardly along it: cells there are
long and narrow. A cell gets a Gauss-Legendre rule; its size and its share of the integral determine the nodes per side.

All functions are compiled for single and for double precision: ``real`` is the type of all numbers of a sample. Every
constant is converted to that type, because a float64 constant would turn the other numbers into float64.

Arguments have one meaning everywhere. ``kind`` is SOFTMAX or LINEAR, ``c`` the skip strength. The letters m and p stand
for minus and plus: (um, up) is u, (zm, zp) is z1 at the centre of a cell, and (hm, hp) are the cell's half widths.
``om`` is omega in the order z1-, z1+, z2-, z2+. ``v1`` is the variance of z1; given z1, z2 has the mean omega_2 +
``ratio`` (z1 - omega_1) and the variance ``v2``. The energy of a point is minus the exponent of that Gaussian.
``reach`` is the half width of the searched region. ``demands`` are fineness and cut of :class:`Accuracy`, then curved,
fewer and largest, the three numbers of CAREFUL or ROUGH. Other arrays are memory that is reused.
"""

from __future__ import annotations

import math
import platform

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

from .activation_kinds import LINEAR, SOFTMAX

_STACK, _LEAVES = 4096, 2**17  # largest numbers of cells waiting to be examined, and of cells that get a rule
_BATCH = 64  # cells examined together
_BUFFER = 256  # nodes evaluated together
_COARSE = 2  # cells per reach of the prior before any splitting
_TAIL = 0.12  # relative increase of the largest cell per unit of energy above the lowest
_BOX, _LARGEST_BOX = 6.0, 30.0  # half width of the region, in prior standard deviations of z1
# Most cells per sample. A sample that needs more fails: it is far outside the model, or its ridge is too long and too
# narrow (second layer known and skip strength 0.1 or less: some samples of ten thousand).
_MOST_CELLS = 1000000
# Nodes along a side: number for a side of zero length; increase per width of the integrand divided by the fineness;
# maximum. The error of a Gauss-Legendre rule for a Gaussian grows tenfold with every node less.
_FIRST_NODES, _NODES_PER_WIDTH, MOST_NODES = 1.5, 4.0, 15
# Settings (curved, fewer, largest) of the accurate cubature, and of the rough one, which is faster: factor of the bound
# of second derivatives (1/2 is Taylor's; the bound itself is loose by more than a factor of three), nodes less per side
# and unit of energy, and largest half width of a cell in units of the local width of the integrand.
CAREFUL, ROUGH = (0.15, 0.3, 1.5), (0.05, 0.5, 2.0)
# Columns of the table of leaves.
_M, _P, _HALF_M, _HALF_P, _ROUGH_M, _ROUGH_P, _LEAST, _BOUNDS = range(8)
# Masks of the four points +-z1, +-z2; bit number = 2 for +z1, plus 1 for +z2. Both points with z2, both with -z2, all.
_PLUS, _MINUS, _ALL = 0b1010, 0b0101, 0b1111
# Cells or nodes per vector instruction, in single precision.
_LANES = 4 if platform.machine() in ("aarch64", "arm64") else 8
#: Polynomial of r in [-1/2, 1/2] that is 2^r to 3e-9.
_EXP2 = tuple(map(float, Chebyshev.interpolate(np.exp2, 6, (-0.5, 0.5)).convert(kind=Polynomial).coef))
_TINY = 1e-30  # lower bound of denominators


# The loops over cells and over nodes are written so that the compiler turns them into vector instructions: they
# have no branch, no call (hence the inlining), and no division that could raise.
_options: dict = {"cache": True, "nogil": True, "error_model": "numpy"}
_options["fastmath"] = {"nsz", "arcp", "contract", "afn", "reassoc"}  # nan, inf kept
_compiled = njit(**_options)
_inlined = njit(forceinline=True, **_options)


@intrinsic
def _power_of_two(typingctx, n):
    """Return 2^n of an integer-valued float n, by its bits: a loop of such calls becomes vector instructions.

    The call passes n only; the compiler adds the first argument.
    """
    width = n.bitwidth
    digits, bias = (23, 127) if width == 32 else (52, 1023)

    def code(context, builder, signature, arguments):
        whole = ir.IntType(width)
        exponent = builder.add(builder.fptosi(arguments[0], whole), ir.Constant(whole, bias))
        return builder.bitcast(builder.shl(exponent, ir.Constant(whole, digits)), arguments[0].type)

    return n(n), code


@_inlined
def _exp(real, x) -> np.floating:
    """Return exp(x), x clipped to [-60, 60], to 1e-8 or to rounding, as 2^n 2^r; a polynomial gives 2^r."""
    y = min(max(x, real(-60)), real(60)) * real(1.4426950408889634)
    n = np.rint(y)
    r = y - n
    p = real(_EXP2[3]) + r * (real(_EXP2[4]) + r * (real(_EXP2[5]) + r * real(_EXP2[6])))
    p = real(_EXP2[0]) + r * (real(_EXP2[1]) + r * (real(_EXP2[2]) + r * p))
    return p * _power_of_two(n)  # pyright: ignore[reportCallIssue]


@_inlined
def _mixing(real, c, zm, zp):
    """Return k = c + tau and kappa of the softmax layer: A = [[k, 0], [kappa, c+1]] on (minus, plus).

    Here tau = a + b - 1 and kappa = a - b, with the sigmoids a, b of zm^2 +- zm zp.
    """
    one = real(1)
    square, cross = zm * zm, zm * zp
    e, f = _exp(real, -square - cross), _exp(real, cross - square)
    scale = one / ((one + e) * (one + f))
    return c + (one - e * f) * scale, (f - e) * scale


@_inlined
def _second_layer(real, kind, c, zm, zp, um, up):
    """Return both components of z2 = A(z1)^{-1} u, and 1/det A, at z1 = (zm, zp) for u = (um, up)."""
    one = real(1)
    if kind == SOFTMAX:
        k, kappa = _mixing(real, c, zm, zp)
        weight = one / k
        xm = um * weight
        skip = one / (c + one)
        return xm, (up - kappa * xm) * skip, weight * skip
    s = c + zm * zm + zp * zp
    t = (zm * um + zp * up) / s
    return (um - zm * t) / c, (up - zp * t) / c, one / (c * s)


@_inlined
def _smallest(real, x, move):
    """Return a lower bound of |x| over a cell on which x changes by at most ``move``."""
    return max(abs(x) - move, real(0))


@_inlined
def _least_mixing(real, zm, zp, hm, hp):
    """Return a lower bound of tau over a cell with centre (zm, zp) and half widths (hm, hp), for any skip strength.

    With m = |z1-| and p = |z1+|, tau = (1 - exp(-2 m^2))/(1 + exp(-2 m^2) + exp(m (p - m)) + exp(-m (p + m))).
    """
    one = real(1)
    low, high, p = max(abs(zm) - hm, real(0)), abs(zm) + hm, abs(zp) + hp
    top = min(max(real(0.5) * p, low), high)  # m (p - m) is largest at m = p/2
    e = _exp(real, -low * low)
    return (one - e * e) / (one + e * e + _exp(real, top * (p - top)) + e)


@_inlined
def _softmax_slopes(real, c, zm, zp, um, up, hm, hp):
    """Return ten numbers on the map z1 -> z2 on a cell, which decide whether the cell is dropped or split.

    In this order: z2 at the centre (two numbers); the size of its first-order change along either side of the cell
    (two); a bound of its second-order change, and the share of z1- in that bound; the least and largest |z2-|; the
    scales in z1- and z1+ on which the mixing changes.
    """
    half, one, two, tiny = real(0.5), real(1), real(2), real(_TINY)
    k, kappa = _mixing(real, c, zm, zp)
    skip, inverse = one / (c + one), one / max(k, tiny)
    z = um * inverse
    w = (up - kappa * z) * skip
    a, b = half * (k - c + one + kappa), half * (k - c + one - kappa)
    da, db = a * (one - a), b * (one - b)
    tilt_x, tilt_y = two * zm + zp, two * zm - zp
    am, ap, bm, bp = da * tilt_x, da * zm, db * tilt_y, -db * zm
    z_m, z_p = -z * inverse * (am + bm), -z * inverse * (ap + bp)
    w_m = ((am - bm) * z + kappa * z_m) * skip
    w_p = ((ap - bp) * z + kappa * z_p) * skip
    along_m, along_p = math.sqrt(z_m * z_m + w_m * w_m) * hm, math.sqrt(z_p * z_p + w_p * w_p) * hp

    gp = abs(zm) + hm
    gx, gy = abs(tilt_x) + two * hm + hp, abs(tilt_y) + two * hm + hp
    ex = _exp(real, -_smallest(real, zm * tilt_x - zm * zm, gx * hm + gp * hp))
    ey = _exp(real, -_smallest(real, zm * tilt_y - zm * zm, gy * hm + gp * hp))
    first_x, first_y = min(real(0.25), ex), min(real(0.25), ey)
    second_x, second_y = min(real(0.0963), ex), min(real(0.0963), ey)
    both = first_x + first_y
    first_m = (first_x * gx + first_y * gy) * hm
    first = first_m + both * gp * hp
    second = (second_x * gx * gx + second_y * gy * gy + two * both) * hm * hm
    second += two * ((second_x * gx + second_y * gy) * gp + both) * hm * hp
    second += (second_x + second_y) * gp * gp * hp * hp
    least = max(max(k - first, c + _least_mixing(real, zm, zp, hm, hp)), tiny)
    inverse_least = one / least
    zmax = abs(um) * inverse_least
    slope = zmax * inverse_least * first
    bend = zmax * inverse_least * (second + two * first * first * inverse_least)
    bend += (bend + two * first * slope + second * zmax) * skip
    largest = min(k + first, c + min(half * gp * gp, one))  # tau <= tanh(zm^2/2)
    smallest = abs(um) / largest
    scale_m = real(0.8) * math.sqrt(min(least, one))
    scale_p = real(0.8) * min(one, max(k / (abs(ap + bp) + tiny), scale_m))
    return z, w, along_m, along_p, bend, first_m / first, smallest, zmax, scale_m, scale_p


@_inlined
def _linear_slopes(real, c, zm, zp, um, up, h):
    """Return what :func:`_softmax_slopes` returns, for A = c + z1 z1^T and a square cell of half width h."""
    one, two = real(1), real(2)
    radius = real(1.41422) * h
    s = one / (c + zm * zm + zp * zp)
    skip = one / c
    t = (zm * um + zp * up) * s
    am, ap = (um - two * zm * t) * s, (up - two * zp * t) * s
    mm, mp, pm, pp = t + zm * am, zm * ap, zp * am, t + zp * ap
    along = real(0.70711) * math.sqrt(mm * mm + mp * mp + pm * pm + pp * pp) * skip * radius
    nearest = max(math.sqrt(zm * zm + zp * zp) - radius, real(0))
    least = c + nearest * nearest
    bend = real(20) * math.sqrt(um * um + up * up) * skip / least * radius * radius
    scale = real(0.8) * math.sqrt(least)
    xm, xp = (um - zm * t) * skip, (up - zp * t) * skip
    return xm, xp, along, along, bend, real(0.5), real(-math.inf), real(math.inf), scale, scale


@_inlined
def _energy(real, kind, c, zm, zp, um, up, om, v1, ratio, v2):
    xm, xp, _ = _second_layer(real, kind, c, zm, zp, um, up)
    dm, dp = zm - om[0], zp - om[1]
    em, ep = xm - om[2] - ratio * dm, xp - om[3] - ratio * dp
    return real(0.5) * ((dm * dm + dp * dp) / v1 + (em * em + ep * ep) / v2)


@_inlined
def _mode_guess(kind, c, um, up, zm, zp):
    """Return z1 (two numbers) with A(z1) z2 = u for z2 = (zm, zp); nan if there is none. -z1 is the other solution."""
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


@_inlined
def _guessed_energy(real, kind, c, um, up, om, v1, ratio, v2):
    """Return the lower energy of two guesses of z1, one per sign of u: with a low first value cells drop sooner."""
    best = real(math.inf)
    for s in (real(-1), real(1)):
        gm, gp = _mode_guess(kind, c, s * um, s * up, om[2], om[3])
        if gm == gm:
            f = real(1) if gm * om[0] + gp * om[1] > 0 else real(-1)
        else:
            gm, gp, f = om[0], om[1], real(1)
        zm, zp = real(f * gm), real(f * gp)
        best = min(best, _energy(real, kind, c, zm, zp, s * um, s * up, om, v1, ratio, v2))
    return best


@_compiled
def _add_roots(stack, n, low, high, bottom, top, reach):
    """Put squares that cover low < z1- < high, bottom < z1+ < top on the stack of n cells; return the new number."""
    half = 0.5 * reach / _COARSE
    columns = max(math.ceil((high - low) / (2 * half) - 1e-9), 1)
    rows = max(math.ceil((top - bottom) / (2 * half) - 1e-9), 1)
    for i in range(columns):
        for j in range(rows):
            stack[0, n], stack[1, n] = low + (2 * i + 1) * half, bottom + (2 * j + 1) * half
            stack[2, n], stack[3, n] = half, half
            n += 1
    return n


@_compiled
def _roots(om, reach, stack):
    """Put cells that cover the half plane z1- >= 0 within ``reach`` of omega_1 or -omega_1 on the stack.

    Return their number.
    """
    sign = 1.0 if om[0] >= 0 else -1.0
    m, p = abs(om[0]), sign * om[1]
    low, high = max(m - reach, 0.0), m + reach
    none = np.int64(0)  # for a bare zero the function would be compiled again
    if m >= reach:
        return _add_roots(stack, none, low, high, p - reach, p + reach, reach)
    if abs(p) >= reach:  # the two regions do not overlap
        n = _add_roots(stack, none, low, high, p - reach, p + reach, reach)
        return _add_roots(stack, n, 0.0, reach - m, -p - reach, -p + reach, reach)
    return _add_roots(stack, none, low, high, -abs(p) - reach, abs(p) + reach, reach)


@_inlined
def _examine(real, kind, c, um, up, om, v1, ratio, v2, curved, cells, count):
    """Compute for each cell the energy at its centre, a lower bound over the cell, and the roughness of both sides.

    Energy and bound are the lowest of the four points +-z1, +-z2. ``cells`` is flat, in rows of _BATCH: zm, zp, hm, hp,
    the four results, and the bounds of the four points. Roughness is the half width in widths of the integrand.
    """
    zero, one, half, tenth, ten = real(0), real(1), real(0.5), real(0.1), real(10)
    o0, o1, o2, o3 = om
    r1, r2, i1, i2 = one / math.sqrt(v1), one / math.sqrt(v2), half / v1, half / v2
    steep = abs(ratio)
    for i in range(count):
        zm, zp = cells[i], cells[_BATCH + i]
        hm, hp = cells[2 * _BATCH + i], cells[3 * _BATCH + i]
        if kind == SOFTMAX:
            found = _softmax_slopes(real, c, zm, zp, um, up, hm, hp)
        else:
            found = _linear_slopes(real, c, zm, zp, um, up, hm)
        xm, xp, along_m, along_p, bend, share, lowest, highest, scale_m, scale_p = found
        along_m += steep * hm
        along_p += steep * hp
        move = along_m + along_p + curved * bend
        apart = steep * (hm + hp)
        best, least = real(math.inf), real(math.inf)
        k = 8
        for t in (-one, one):
            dm, dp = t * zm - o0, t * zp - o1
            nearm, nearp = max(abs(dm) - hm, zero), max(abs(dp) - hp, zero)
            far1, near1 = (dm * dm + dp * dp) * i1, (nearm * nearm + nearp * nearp) * i1
            tm, tp = o2 + ratio * dm, o3 + ratio * dp
            for s in (-one, one):
                em, ep = s * xm - tm, s * xp - tp
                far2 = em * em + ep * ep
                target = tm * (s if um > zero else -s)
                near2 = max(max(math.sqrt(far2) - move, zero), max(lowest - target, target - highest) - apart)
                bound = near1 + near2 * near2 * i2
                cells[k * _BATCH + i] = bound
                k += 1
                best, least = min(best, far1 + far2 * i2), min(least, bound)
        cells[4 * _BATCH + i] = best
        cells[5 * _BATCH + i] = least
        rough_m = (along_m + tenth * min(share * bend, ten * along_m)) * r2
        rough_p = (along_p + tenth * min((one - share) * bend, ten * along_p)) * r2
        cells[6 * _BATCH + i] = max(rough_m, hm * max(r1, one / scale_m))
        cells[7 * _BATCH + i] = max(rough_p, hp * max(r1, one / scale_p))


@_inlined
def _filled_up(count):
    """Return ``count`` rounded up to whole vector instructions: a remainder would be computed one by one."""
    return (count + _LANES - 1) // _LANES * _LANES


@_inlined
def _leaves(real, kind, c, um, up, om, v1, ratio, v2, reach, demands, stack, cells, leaves):
    """Split cells until each is negligible or small enough; write the others, the leaves, to the table ``leaves``.

    A row of the table has centre, half widths, roughness, the lower bound of the energy over the cell, and this bound
    for each of the four points +-z1, +-z2. Return the number of leaves and the lowest energy that was seen.
    """
    _, cut, curved, _, largest = demands
    zero, one, two, smallest = real(0), real(1), real(2), real(1e-9)
    best = _guessed_energy(real, kind, c, um, up, om, v1, ratio, v2)
    n = _roots(om, reach, stack)
    seen = found = 0
    while n > 0:
        count = min(n, _BATCH)
        n -= count
        seen += count
        if seen > _MOST_CELLS:
            return 0, best
        for k in range(4):
            for i in range(count):
                cells[k * _BATCH + i] = stack[k, n + i]
            for i in range(count, _filled_up(count)):
                cells[k * _BATCH + i] = stack[k, n]
        _examine(real, kind, c, um, up, om, v1, ratio, v2, curved, cells, _filled_up(count))
        for i in range(count):
            best = min(best, cells[4 * _BATCH + i])
        for i in range(count):
            least = cells[5 * _BATCH + i]
            if least > best + cut:
                continue
            zm, zp = cells[i], cells[_BATCH + i]
            hm, hp = cells[2 * _BATCH + i], cells[3 * _BATCH + i]
            rough_m, rough_p = cells[6 * _BATCH + i], cells[7 * _BATCH + i]
            rough = largest * (one + real(_TAIL) * max(least - best, zero))
            split_m, split_p = rough_m > rough and hm > smallest, rough_p > rough and hp > smallest
            if (split_m or split_p) and n < _STACK - 4:
                n = _split(stack, n, zm, zp, hm, hp, split_m, split_p, two)
                continue
            if found == _LEAVES:
                return 0, best
            leaf = leaves[found]
            leaf[_M], leaf[_P], leaf[_HALF_M], leaf[_HALF_P] = zm, zp, hm, hp
            leaf[_ROUGH_M], leaf[_ROUGH_P], leaf[_LEAST] = rough_m, rough_p, least
            for k in range(4):
                leaf[_BOUNDS + k] = cells[(8 + k) * _BATCH + i]
            found += 1
    return found, best


@_inlined
def _split(stack, n, zm, zp, hm, hp, split_m, split_p, two):
    """Put the parts of a cell, halved along m, p or both, on the stack of n cells; return the new number of cells."""
    parts_m, parts_p = 2 if split_m else 1, 2 if split_p else 1
    hm, hp = (hm / two if split_m else hm), (hp / two if split_p else hp)
    low_m, low_p = (zm - hm if split_m else zm), (zp - hp if split_p else zp)
    m = low_m
    for _ in range(parts_m):
        p = low_p
        for _ in range(parts_p):
            stack[0, n], stack[1, n], stack[2, n], stack[3, n] = m, p, hm, hp
            p += two * hp
            n += 1
        m += two * hm
    return n


@_inlined
def _second_layer_of(real, kind, c, um, up, nodes, count):
    """Write z2 of the first ``count`` nodes to the buffer ``nodes``, and multiply their weights by 1/det A.

    The rows of the buffer, of length _BUFFER, are z1-, z1+, weight, z2-, z2+.
    """
    for i in range(count):
        xm, xp, weight = _second_layer(real, kind, c, nodes[i], nodes[_BUFFER + i], um, up)
        nodes[3 * _BUFFER + i], nodes[4 * _BUFFER + i] = xm, xp
        nodes[2 * _BUFFER + i] *= weight


@_inlined
def _add_about_omega(sums, away, out):
    """Add 15 moments ``sums`` about omega - ``away`` to the 15 moments ``out`` about omega (0th, 1st, 2nd order)."""
    m0 = np.float64(sums[0])
    out[0] += m0
    q = 5
    for i in range(4):
        out[1 + i] += sums[1 + i] - away[i] * m0
        for j in range(i, 4):
            out[q] += sums[q] - away[i] * np.float64(sums[1 + j]) - away[j] * np.float64(sums[1 + i])
            out[q] += np.float64(away[i]) * away[j] * m0
            q += 1


@_compiled
def _add_one_sign(real, t, s, om, v1, ratio, v2, reference, nodes, count, out):
    """Add the moments of the points t z1, s z2 (t, s = +-1) of the buffer, in units of exp(-reference), to ``out``.

    Return the number of points whose energy is so far below the reference that the sum would overflow. If there is
    one, nothing is added.
    """
    zero, one, top, low = real(0), real(1), real(40), real(-60)
    o0, o1, o2, o3 = om
    i1, i2 = real(0.5) / v1, real(0.5) / v2
    m0 = m1 = m2 = m3 = m4 = zero
    m00 = m01 = m02 = m03 = m11 = m12 = m13 = m22 = m23 = m33 = zero
    deeper = zero
    for i in range(count):
        d0, d1 = t * nodes[i] - o0, t * nodes[_BUFFER + i] - o1
        d2, d3 = s * nodes[3 * _BUFFER + i] - o2, s * nodes[4 * _BUFFER + i] - o3
        em, ep = d2 - ratio * d0, d3 - ratio * d1
        depth = reference - (d0 * d0 + d1 * d1) * i1 - (em * em + ep * ep) * i2
        deeper += one if depth > top else zero
        f = nodes[2 * _BUFFER + i] * (_exp(real, depth) if depth > low else zero)
        f0, f1, f2, f3 = f * d0, f * d1, f * d2, f * d3
        m0, m1, m2, m3, m4 = m0 + f, m1 + f0, m2 + f1, m3 + f2, m4 + f3
        m00, m01, m02, m03 = m00 + f0 * d0, m01 + f0 * d1, m02 + f0 * d2, m03 + f0 * d3
        m11, m12, m13 = m11 + f1 * d1, m12 + f1 * d2, m13 + f1 * d3
        m22, m23, m33 = m22 + f2 * d2, m23 + f2 * d3, m33 + f3 * d3
    if deeper == zero:
        sums = (m0, m1, m2, m3, m4, m00, m01, m02, m03, m11, m12, m13, m22, m23, m33)
        _add_about_omega(sums, (zero, zero, zero, zero), out)
    return deeper


@_compiled
def _add_two_signs(real, s, om, v1, ratio, v2, reference, nodes, count, out):
    """Add the moments of the two points +-z1, s z2 together, as :func:`_add_one_sign` does for one point.

    Where both matter, omega_1 is within a few standard deviations of zero: moments of z1 may be taken about zero and
    shifted afterwards. Moments of z2 may not: its standard deviation may be much smaller than omega_2.
    """
    zero, one, two, high, low = real(0), real(1), real(2), real(40), real(-60)
    o0, o1, o2, o3 = om
    i1, i2 = real(0.5) / v1, real(0.5) / v2
    # Energy = a z1^2 + i2 e^2 -+ z1.(2 i1 omega_1 + b e) + constant, with e = z2 - omega_2 + ratio omega_1.
    a, b = i1 + ratio * ratio * i2, two * ratio * i2
    p0, p1 = two * i1 * o0, two * i1 * o1
    top = reference - i1 * (o0 * o0 + o1 * o1)
    r0, r1 = ratio * o0, ratio * o1
    m0 = m1 = m2 = m3 = m4 = zero
    m00 = m01 = m02 = m03 = m11 = m12 = m13 = m22 = m23 = m33 = zero
    deeper = zero
    for i in range(count):
        d0, d1 = nodes[i], nodes[_BUFFER + i]
        d2, d3 = s * nodes[3 * _BUFFER + i] - o2, s * nodes[4 * _BUFFER + i] - o3
        em, ep = d2 + r0, d3 + r1
        even = top - a * (d0 * d0 + d1 * d1) - i2 * (em * em + ep * ep)
        odd = (p0 + b * em) * d0 + (p1 + b * ep) * d1
        deepest = even + abs(odd)
        deeper += one if deepest > high else zero
        w = nodes[2 * _BUFFER + i]
        w = w if deepest > low else zero
        plus, minus = w * _exp(real, even + odd), w * _exp(real, even - odd)
        f, x = plus + minus, plus - minus
        f0, f1, f2, f3, x0, x1 = f * d0, f * d1, f * d2, f * d3, x * d0, x * d1
        m0, m1, m2, m3, m4 = m0 + f, m1 + x0, m2 + x1, m3 + f2, m4 + f3
        m00, m01, m02, m03 = m00 + f0 * d0, m01 + f0 * d1, m02 + x0 * d2, m03 + x0 * d3
        m11, m12, m13 = m11 + f1 * d1, m12 + x1 * d2, m13 + x1 * d3
        m22, m23, m33 = m22 + f2 * d2, m23 + f2 * d3, m33 + f3 * d3
    if deeper == zero:
        sums = (m0, m1, m2, m3, m4, m00, m01, m02, m03, m11, m12, m13, m22, m23, m33)
        _add_about_omega(sums, (o0, o1, zero, zero), out)
    return deeper


@_compiled
def _add_all_signs(real, om, v1, ratio, v2, reference, nodes, count, out):
    """Add the moments of the four points +-z1, +-z2 together, as :func:`_add_one_sign` does for one point.

    Where all four matter, omega is within a few standard deviations of zero: moments are taken about zero.
    """
    zero, one, two, high, low = real(0), real(1), real(2), real(40), real(-60)
    o0, o1, o2, o3 = om
    i1, i2 = real(0.5) / v1, real(0.5) / v2
    # Energy = a z1^2 + b z2^2 - cross z1.z2 - z1.p - z2.q + constant, with signs.
    a, b, cross = i1 + ratio * ratio * i2, i2, two * ratio * i2
    r2, r3 = o2 - ratio * o0, o3 - ratio * o1
    p0, p1 = two * (i1 * o0 - ratio * i2 * r2), two * (i1 * o1 - ratio * i2 * r3)
    q2, q3 = two * i2 * r2, two * i2 * r3
    top = reference - i1 * (o0 * o0 + o1 * o1) - i2 * (r2 * r2 + r3 * r3)
    m0 = m1 = m2 = m3 = m4 = zero
    m00 = m01 = m02 = m03 = m11 = m12 = m13 = m22 = m23 = m33 = zero
    deeper = zero
    for i in range(count):
        d0, d1, d2, d3 = nodes[i], nodes[_BUFFER + i], nodes[3 * _BUFFER + i], nodes[4 * _BUFFER + i]
        even = top - a * (d0 * d0 + d1 * d1) - b * (d2 * d2 + d3 * d3)
        odd1, odd2, both = p0 * d0 + p1 * d1, q2 * d2 + q3 * d3, cross * (d0 * d2 + d1 * d3)
        plus, minus = even + both, even - both
        deepest = max(plus + abs(odd1 + odd2), minus + abs(odd1 - odd2))
        deeper += one if deepest > high else zero
        w = nodes[2 * _BUFFER + i]
        pp, mm = _exp(real, plus + (odd1 + odd2)), _exp(real, plus - (odd1 + odd2))
        pm, mp = _exp(real, minus + (odd1 - odd2)), _exp(real, minus - (odd1 - odd2))
        w = w if deepest > low else zero
        same, other = pp + mm, pm + mp
        along, across = pp - mm, pm - mp
        f, first, second, mixed = w * (same + other), w * (along + across), w * (along - across), w * (same - other)
        f0, f1, f2, f3 = f * d0, f * d1, f * d2, f * d3
        x0, x1 = mixed * d0, mixed * d1
        m0, m1, m2, m3, m4 = m0 + f, m1 + first * d0, m2 + first * d1, m3 + second * d2, m4 + second * d3
        m00, m01, m02, m03 = m00 + f0 * d0, m01 + f0 * d1, m02 + x0 * d2, m03 + x0 * d3
        m11, m12, m13 = m11 + f1 * d1, m12 + x1 * d2, m13 + x1 * d3
        m22, m23, m33 = m22 + f2 * d2, m23 + f2 * d3, m33 + f3 * d3
    if deeper == zero:
        sums = (m0, m1, m2, m3, m4, m00, m01, m02, m03, m11, m12, m13, m22, m23, m33)
        _add_about_omega(sums, om, out)
    return deeper


@_compiled
def _evaluate(real, om, v1, ratio, v2, reference, signs, nodes, count, out):
    """Add the moments of buffered nodes at the points in the mask ``signs`` to ``out``, in units of exp(-reference).

    Return the reference, which is lowered (and ``out`` rescaled) where a sum would overflow.
    """
    one = real(1)
    s = one if signs & _PLUS else -one
    while True:
        if signs == _ALL:
            deeper = _add_all_signs(real, om, v1, ratio, v2, reference, nodes, count, out)
        elif signs in (_PLUS, _MINUS):
            deeper = _add_two_signs(real, s, om, v1, ratio, v2, reference, nodes, count, out)
        else:
            t = one if signs & 0b1100 else -one
            deeper = _add_one_sign(real, t, s, om, v1, ratio, v2, reference, nodes, count, out)
        if deeper == real(0):
            return reference
        reference -= real(40)  # a peak deeper than all before: change the scale
        out *= math.exp(-40.0)


@_inlined
def _rule_size(rough, depth, fineness, fewer):
    """Return the number of nodes along a side of roughness ``rough``, for a cell ``depth`` above the lowest energy."""
    count = _FIRST_NODES + _NODES_PER_WIDTH * rough / fineness - fewer * depth
    return int(min(max(math.ceil(count), 1), MOST_NODES))


@_inlined
def _signs_that_matter(leaf, highest):
    """Return the mask of the points +-z1, +-z2 of a leaf whose energy bounds are at most ``highest``.

    The mask has no point, one, two that differ in z1 only, or all four.
    """
    signs = 0
    for k in range(4):
        if leaf[_BOUNDS + k] <= highest:
            signs |= 1 << k
    several = signs & (signs - 1)
    return signs if several == 0 or signs in (_PLUS, _MINUS) else _ALL


@_inlined
def _plan(leaves, found, best, demands, plans):
    """Write mask and nodes per side of every leaf to ``plans``; return the bits 1 << mask of all masks that occur."""
    fineness, cut, _, fewer, _ = demands
    present = 0
    for i in range(found):
        leaf = leaves[i]
        signs = _signs_that_matter(leaf, best + cut)
        depth = max(leaf[_LEAST] - best, 0.0)
        plans[i, 0] = signs
        plans[i, 1] = _rule_size(leaf[_ROUGH_M], depth, fineness, fewer)
        plans[i, 2] = _rule_size(leaf[_ROUGH_P], depth, fineness, fewer)
        present |= 1 << signs
    return present


@_inlined
def _fill(leaves, plans, first, found, signs, rules, nodes):
    """Fill the buffer with the nodes of those leaves from ``first`` to ``found`` whose mask is ``signs``.

    ``rules`` are the Gauss-Legendre rules of 1, 2, ... nodes. Return the number of nodes, and the next leaf.
    """
    count = 0
    for i in range(first, found):
        if plans[i, 0] != signs:
            continue
        leaf, columns, rows = leaves[i], plans[i, 1], plans[i, 2]
        if count + columns * rows > _BUFFER:
            return count, i
        area = leaf[_HALF_M] * leaf[_HALF_P]
        for j in range(columns):
            zm, weight = leaf[_M] + leaf[_HALF_M] * rules[0, columns, j], area * rules[1, columns, j]
            for k in range(rows):
                nodes[count], nodes[_BUFFER + count] = zm, leaf[_P] + leaf[_HALF_P] * rules[0, rows, k]
                nodes[2 * _BUFFER + count] = weight * rules[1, rows, k]
                count += 1
    return count, found


@_inlined
def _moments(real, kind, c, um, up, om, v1, ratio, v2, reach, demands, rules, stack, cells, leaves, plans, nodes, out):
    """Write unnormalised 0th, 1st, 2nd moments of Z - omega to ``out`` (15 numbers); return the log of their scale."""
    out[:] = 0.0
    found, best = _leaves(real, kind, c, um, up, om, v1, ratio, v2, reach, demands, stack, cells, leaves)
    reference = best
    present = _plan(leaves, found, best, demands, plans)
    for signs in (1, 2, 4, 8, _MINUS, _PLUS, _ALL):
        following = np.int64(0 if present >> signs & 1 else found)
        while following < found:
            count, following = _fill(leaves, plans, following, found, signs, rules, nodes)
            whole = _filled_up(count)
            for i in range(count, whole):
                nodes[i], nodes[_BUFFER + i], nodes[2 * _BUFFER + i] = nodes[0], nodes[_BUFFER], real(0)
            if count > 0:
                _second_layer_of(real, kind, c, um, up, nodes, whole)
                reference = _evaluate(real, om, v1, ratio, v2, reference, signs, nodes, whole, out)
    return -reference - 2 * math.log(2 * math.pi) - math.log(v1) - math.log(v2)


@_inlined
def _store_posterior(n, scale, out, log_evidence, shift, covariance):
    log_evidence[n] = scale + math.log(out[0])
    for i in range(4):
        shift[n, i] = out[1 + i] / out[0]
    q = 5
    for i in range(4):
        for j in range(i, 4):
            covariance[n, i, j] = out[q] / out[0] - shift[n, i] * shift[n, j]
            covariance[n, j, i] = covariance[n, i, j]
            q += 1


@_inlined
def _squares_of_row(first, second, aa, ab, bb, v, share):
    """Return an estimate of E|g|^2, and |G|_F^2, of an index z of prior variance v.

    ``first`` and ``second`` are the means of z- - omega- and z+ - omega+, and aa, ab, bb their second moments.
    ``share`` is the weight of the estimator -tr G; that of |g|^2 is one minus it.
    """
    square = (first * first + second * second) / (v * v)
    a, b, d = ((aa - first * first) / v - 1) / v, (ab - first * second) / (v * v), ((bb - second * second) / v - 1) / v
    return square - share * (a + d + square), a * a + 2 * b * b + d * d


@_inlined
def _store_squares(n, scale, out, V, shares, log_evidence, squares):
    log_evidence[n] = scale + math.log(out[0])
    w = 1 / out[0]
    one = _squares_of_row(out[1] * w, out[2] * w, out[5] * w, out[6] * w, out[9] * w, V[0, 0], shares[0])
    two = _squares_of_row(out[3] * w, out[4] * w, out[12] * w, out[13] * w, out[14] * w, V[1, 1], shares[1])
    squares[0, n], squares[1, n], squares[2, n], squares[3, n] = one[0], two[0], one[1], two[1]


@_inlined
def _block(
    real, kind, rules, first, last, skip, u, fields, V, shares, demands, log_evidence, shift, covariance, squares
):
    """Compute samples ``first`` to ``last`` of a batch: posteriors, or squared scores if ``squares`` is not empty.

    ``fields`` and ``shares`` are those of :func:`.two_layer_batches.score_squares`. The last four arrays are written.
    """
    stack = np.empty((4, _STACK), real)
    cells = np.empty(12 * _BATCH, real)
    leaves = np.empty((_LEAVES, _BOUNDS + 4), real)
    plans = np.empty((_LEAVES, 3), np.int64)
    nodes = np.empty(5 * _BUFFER, real)
    out = np.empty(15)
    c = real(skip)
    demands = (real(demands[0]), real(demands[1]), real(demands[2]), real(demands[3]), real(demands[4]))
    Z, noise, mixing = fields
    averaged, several = squares.shape[1] > 0, len(V) > 1
    for n in range(first, last):
        own = V[n if several else 0]
        um, up, v1 = real(u[n, 0]), real(u[n, 1]), real(own[0, 0])
        om = (
            real(mixing[0] * Z[n, 0] + mixing[2] * noise[n, 0]),
            real(mixing[0] * Z[n, 1] + mixing[2] * noise[n, 1]),
            real(mixing[1] * Z[n, 2] + mixing[3] * noise[n, 2]),
            real(mixing[1] * Z[n, 3] + mixing[3] * noise[n, 3]),
        )
        ratio = real(own[0, 1] / own[0, 0])
        v2 = real(own[1, 1] - own[0, 1] * own[0, 1] / own[0, 0])
        box, scale = _BOX, 0.0
        out[0] = 0.0
        while box < _LARGEST_BOX and not out[0] > 0.0:  # larger for an unlikely observation
            reach = box * math.sqrt(v1)
            scale = _moments(
                real, kind, c, um, up, om, v1, ratio, v2, reach, demands, rules, stack, cells, leaves, plans, nodes, out
            )
            box *= 4.0
        if not out[0] > 0.0:
            out[:] = math.nan
        if averaged:
            _store_squares(n, scale, out, own, shares, log_evidence, squares)
        else:
            _store_posterior(n, scale, out, log_evidence, shift, covariance)


# One function for each activation: a branch on the activation in a loop would prevent vector instructions.
@_compiled
def softmax_block(rules, first, last, *given):
    _block(rules.dtype.type, SOFTMAX, rules, first, last, *given)


@_compiled
def linear_block(rules, first, last, *given):
    _block(rules.dtype.type, LINEAR, rules, first, last, *given)
