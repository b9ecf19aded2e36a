"""Fast posteriors of up to three indices given one output: a grid over the indices, and integrals along its edges.

In whitened coordinates z = omega + V^{1/2} x the posterior of x is N(0, I) times the likelihood of g(z). The likelihood
is a ridge along the level set {g = y}; without noise it is the level set itself. The lines of a grid along every
coordinate cross the ridge. On every piece of a line the link is nearly linear, so that the piece is integrated in
closed form. A partition of unity divides the ridge between the coordinates; the share of a coordinate vanishes where
its lines are tangent to the ridge.

A first, coarse grid finds the window that holds the mass. The difference between even and odd lines estimates the
error: where it is large the window gets a finer grid. Samples without mass in the window get the channel's own
posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .....numerics import interrupts
from .....numerics.precision import double_precision
from .....numerics.programs.compiled import compiled
from .....numerics.threads import in_threads

#: Largest number of indices, which is the dimension of the grid.
LARGEST_SIZE = 3
#: Half width of the first window around omega, in standard deviations.
_REACH = 6.5
#: Nodes per coordinate by the number of indices: of coarse grids, of fine grids, and of grids for the samples whose
#: fine grid was too coarse.
_COARSE = {1: 32, 2: 16, 3: 9}
_FINE = ({1: 64, 2: 28, 3: 14}, {1: 256, 2: 64, 3: 28})
#: Fraction of its last width below which a window is determined again, and the most determinations.
_SHRUNK, _LOOKS = 0.5, 6
#: Difference of means from even and odd lines, in posterior standard deviations, above which a grid is too coarse.
_APART = 0.2
#: Number of nodes that a thread processes at a time.
_AT_ONCE = 2**18
#: Numbers of points per evaluation of a link. Two numbers only, so that only two programs are compiled.
_BLOCKS = 2**16, 2**12


class _Sums(NamedTuple):
    """Log evidence (m,), mean (m, n) and covariance (m, n, n) of whitened indices, and error estimates (m,).

    These are differences of means from even and odd lines, in posterior deviations.
    """

    log_evidence: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    apart: np.ndarray


class _Samples(NamedTuple):
    """Outputs (m,), prior means (m, n) and square roots (m, n, n) of prior covariances."""

    y: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    def some(self, rows: np.ndarray) -> _Samples:
        return _Samples(*(x[rows] for x in self))


class LevelSets:
    """Function that computes the posteriors of many samples.

    Parameters
    ----------
    link : callable
        Function of the vector of all indices (n,), n at most 3; returns one number in an array (1,).
    size : int
        n.
    noise : float
        Variance of the noise.
    """

    def __init__(self, link: Callable[[jax.Array], jax.Array], size: int, noise: float) -> None:
        self._link, self._size, self._sigma = link, size, float(np.sqrt(noise))

    @cached_property
    def _programs(self) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
        """The compiled link of points (n, m), and the compiled link with its gradient (1 + n, m)."""

        def one(z: jax.Array) -> jax.Array:
            return self._link(z)[0]

        def with_gradient(z: jax.Array) -> jax.Array:
            value, slopes = jax.value_and_grad(one)(z)
            return jnp.concatenate([value[None], slopes])

        return compiled(jax.vmap(one, 1, 0)), compiled(jax.vmap(with_gradient, 1, 1))

    def _evaluated(self, z: np.ndarray, gradient: bool = False) -> np.ndarray:
        """Return values (1, m) at points (n, m); with ``gradient``, values and gradients (1 + n, m)."""
        program, m = self._programs[gradient], z.shape[1]
        found = np.empty((1 + gradient * self._size, m))
        start = 0
        while start < m:
            block = _BLOCKS[m - start <= _BLOCKS[1] * 4]
            part = z[:, start : start + block]
            count = part.shape[1]
            if count < block:
                part = np.concatenate([part, np.repeat(part[:, -1:], block - count, axis=1)], 1)
            with double_precision():
                found[:, start : start + count] = np.asarray(program(part)).reshape(len(found), -1)[:, :count]
            start += block
        return found

    def __call__(self, y: np.ndarray, mean: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log evidence (m,), shift of the mean (m, n) and covariance (m, n, n) of the posteriors.

        Outputs are y (m,), priors N(mean, V), V (m, n, n). Log evidence is not finite if a window has no mass.
        """
        values, axes = np.linalg.eigh(V)
        root = (axes * np.sqrt(values.clip(0))[:, None, :]) @ axes.swapaxes(1, 2)
        samples = _Samples(y, mean, root)
        found = self._in_chunks(samples, np.arange(len(y)), _FINE[0][self._size])
        bad = np.flatnonzero(~(found.apart < _APART))
        if len(bad):
            better = self._in_chunks(samples, bad, _FINE[1][self._size])
            for field, new in zip(found, better, strict=True):
                field[bad] = new
        shift = np.einsum("mij,mj->mi", root, found.mean)
        covariance = root @ found.covariance @ root
        return found.log_evidence, shift, covariance

    def _in_chunks(self, samples: _Samples, rows: np.ndarray, K: int) -> _Sums:
        chunk = max(_AT_ONCE // K**self._size, 1)
        parts = [rows[start : start + chunk] for start in range(0, len(rows), chunk)]

        def work(part: np.ndarray) -> _Sums:
            interrupts.check()
            return self._summed(samples.some(part), K)

        found = in_threads(work, parts)
        return _Sums(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _summed(self, samples: _Samples, K: int) -> _Sums:
        lo, hi = self._windows(samples)
        return self._integrated(samples, lo, hi, K)

    def _values(self, samples: _Samples, lo: np.ndarray, hi: np.ndarray, K: int) -> np.ndarray:
        """Return the link (m, K^n) at the nodes of grids from lo to hi (m, n), in whitened coordinates."""
        n = self._size
        axes = lo[:, :, None] + (hi - lo)[:, :, None] * (np.arange(K) / (K - 1))
        z = np.zeros((n, len(lo), *[K] * n))
        for j in range(n):
            along = axes[:, j].reshape(-1, *[K if i == j else 1 for i in range(n)])
            for i in range(n):
                if samples.root[:, i, j].any():  # the root of a diagonal covariance is diagonal
                    z[i] += samples.root[:, i, j].reshape(-1, *[1] * n) * along
        z += samples.mean.T.reshape(n, -1, *[1] * n)
        return self._evaluated(z.reshape(n, -1)).reshape(len(lo), -1)

    def _windows(self, samples: _Samples) -> tuple[np.ndarray, np.ndarray]:
        from .edge_kernels import windows  # numba is slow to import

        K, n = _COARSE[self._size], self._size
        lo, hi = np.full((len(samples.y), n), -_REACH), np.full((len(samples.y), n), _REACH)
        rows = np.arange(len(lo))
        for _ in range(_LOOKS):
            some, first, last = samples.some(rows), lo[rows], hi[rows]
            width = last - first
            windows(self._values(some, first, last, K), some.y, first, last, _coordinates(K, n), self._sigma)
            lo[rows], hi[rows] = first, last
            rows = rows[((last - first) < _SHRUNK * width).any(1)]
            if len(rows) == 0:
                break
        return lo, hi

    def _integrated(self, samples: _Samples, lo: np.ndarray, hi: np.ndarray, K: int) -> _Sums:
        from .edge_kernels import MOST_POINTS, asked_points, begin, inserted, integrals, relevant_edges

        n, sigma, coordinates = self._size, self._sigma, _coordinates(K, self._size)
        y, mean, root = samples
        values, tops = self._values(samples, lo, hi, K), np.empty(len(lo))
        edges = np.empty((len(lo) * K ** (n - 1) * 16, 3), np.int64)
        count = relevant_edges(values, y, lo, hi, coordinates, sigma, edges, tops)
        if count > len(edges):
            edges = np.empty((count, 3), np.int64)
            relevant_edges(values, y, lo, hi, coordinates, sigma, edges, tops)
        edges = edges[:count]
        places, outputs = np.empty((count, MOST_POINTS)), np.empty((count, MOST_POINTS))
        counts, asked = np.empty(count, np.int64), np.empty(count)
        begin(values, y, coordinates, edges, places, outputs, counts, asked)
        gradients, more = None, count
        while more:
            rows, points = np.empty(more, np.int64), np.empty((n, more))
            asked_points(edges, asked, lo, hi, coordinates, mean, root, rows, points)
            found = self._evaluated(points, gradient=gradients is None)
            gradients = found[1:] if gradients is None else gradients
            more = inserted(found[0], y, rows, edges, sigma, places, outputs, counts, asked)
        sums = np.zeros((len(lo), 2, 1 + n + n * n))
        if gradients is not None:
            integrals(edges, places, outputs, counts, gradients, lo, hi, coordinates, root, sigma, tops, sums)
        return _from_sums(sums, tops, n)


@lru_cache(maxsize=16)
def _coordinates(K: int, n: int) -> np.ndarray:
    """Return the integer coordinates (K^n, n) of the nodes of a grid."""
    return np.stack(np.meshgrid(*[np.arange(K)] * n, indexing="ij"), -1).reshape(-1, n)


def _from_sums(sums: np.ndarray, tops: np.ndarray, n: int) -> _Sums:
    whole = sums.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_evidence = tops + np.log(whole[:, 0])
        mean = whole[:, 1 : 1 + n] / whole[:, :1]
        square = (whole[:, 1 + n :] / whole[:, :1]).reshape(-1, n, n)
        covariance = square - mean[:, :, None] * mean[:, None, :]
        halves = sums[:, :, 1 : 1 + n] / sums[:, :, :1]
        spread = np.sqrt(np.einsum("mii->mi", covariance).sum(1))
        apart = np.sqrt(((halves[:, 0] - halves[:, 1]) ** 2).sum(1)) / spread
    return _Sums(log_evidence, mean, covariance, apart)
