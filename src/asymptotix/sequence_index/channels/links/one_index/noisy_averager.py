"""Averages of a link of one index and one token with Gaussian noise, by deterministic quadrature.

With omega ~ N(0, q), the output has the density Z_out(y, omega) = int dz N(z; omega, v) N(y; g(z), noise), so that an
average is an integral over omega and y,

    E[f] = int domega N(omega; 0, q) int dy Z_out(y, omega) f(y, omega),

where f depends on the moments of z under the integrand of Z_out. The integrand is smooth in y on the scale of the noise
and in omega on the scale of the prior, so that sums over even grids converge faster than any power of the step. Along
z an interval of a Gauss-Legendre rule is no longer than a standard deviation of the prior and of the likelihood.
"""

from __future__ import annotations

import functools

import jax
import numpy as np

from .....numerics.precision import double_precision
from .....numerics.programs.compiled import compiled
from .....numerics.threads import available_cores, each_in_parallel
from ....models.observed_link import ObservedLink, flat_link
from ...protocol import Averager, Averages
from .pieces import pieces

#: Largest |z| of a node, largest |z| of nodes that set the range of outputs, and number of first probes per piece.
_FARTHEST, _LIKELY, _PROBES = 7.0, 6.0, 128
#: Largest change of the link between two probes, and its largest deviation from a straight line there, in standard
#: deviations of the noise; and the least distance of probes.
_STEEP, _BENT, _CLOSEST = 0.5, 5e-4, 1e-8
#: Nodes of an interval, and its largest length.
_ORDER, _LENGTH = 5, 0.25
#: Steps of y and of omega, in standard deviations of the noise and of omega given z. Between two roots a posterior
#: moves from one to the other on a scale that is several times smaller than these deviations.
STEPS = 0.3, 0.2
#: Range of outputs beyond the values of the link, in standard deviations of the noise.
_BEYOND = 6.0
#: Most outputs, most nodes and the largest product of both for one average; and the density of an output, relative to
#: the largest, below which the output is left out.
_MOST_OUTPUTS, _MOST_NODES, _MOST_PAIRS, _RARE = 2**15, 2**17, 2**28, 1e-11
#: Largest variance of the noise, in units of the variance of the link. Beyond it the covariances of posterior and prior
#: differ by less than the error of the quadrature.
_MUCH_NOISE = 1e4
#: Largest mass of the prior beyond the nodes.
_LOST = 1e-9
#: Outputs per task of a thread.
_PART = 32


class NoisyAverager(Averager):
    """Averages of a link of one index with noise.

    Parameters
    ----------
    model : ObservedLink
        Model of one index, one token and one output, with noise.
    steps : tuple
        Steps of outputs and of omega, see ``STEPS``.
    order : int
        Nodes of an interval of z.

    Raises
    ------
    NotImplementedError
        If the link needs too many nodes (too steep for its noise, or too many pieces), if it overflows, or if the
        noise hides it.
    """

    #: Measured against half the steps and twice the nodes of an interval, for 1-q from 1 to 1e-3.
    accuracy = 1e-5

    def __init__(self, model: ObservedLink, steps: tuple[float, float] = STEPS, order: int = _ORDER) -> None:
        self._model, self._noise, self._steps, self._order = model, float(model.noise), steps, order
        self._link = compiled(jax.vmap(lambda z: flat_link(model, z[None])[0]))
        ends = np.clip(pieces(model).ends, -_FARTHEST, _FARTHEST)
        self._ends = ends[ends[:, 1] > ends[:, 0]]
        self._nodes = functools.lru_cache(maxsize=8)(self._nodes_for)
        self._outputs = self._likely_outputs(*self._nodes(1.0))
        self._last: tuple[float, np.ndarray] | None = None

    def __call__(self, V: np.ndarray) -> Averages:
        moment, curvature, evidence = self._means(float(V[0, 0]))
        return Averages(np.full((1, 1, 1), moment), np.array([evidence]), np.full((1, 1), curvature))

    def moments_and_operators(
        self, V: np.ndarray, frame: np.ndarray, basis: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        moment, curvature, _ = self._means(float(V[0, 0]))
        return np.full((1, 1, 1), moment), np.full((1, 1, 1), curvature)

    def _means(self, v: float) -> np.ndarray:
        """Return E[g_out^2], E[(d g_out/d omega)^2] and E[log Z_out] at V = v, as an array (3,)."""
        last = self._last
        if last is not None and last[0] == v:
            return last[1]
        mass, *totals = self._sums(self._outputs, v).sum(0)
        found = np.array(totals) / mass
        self._last = v, found
        return found

    def _sums(self, y: np.ndarray, v: float) -> np.ndarray:
        """Return the density of every output y (m,), and the density times g^2, G^2 and log Z_out, at V = v: (m, 4)."""
        from .noisy_kernel import sums

        nodes, found = self._nodes(float(2.0 ** np.floor(np.log2(v)))), np.zeros((len(y), 4))

        def work(first: int) -> None:
            part = slice(first, first + _PART)
            sums(y[part], *nodes, self._noise, max(1 - v, 0.0), v, self._steps[1], found[part])

        each_in_parallel(work, range(0, len(y), _PART), available_cores())
        return found

    def _nodes_for(self, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return nodes z, their weights and the link there, fine enough for prior variances of at least ``least``."""
        edges = np.concatenate([_divided(z, values, self._noise, least) for z, values in self._probes])
        x, rule = np.polynomial.legendre.leggauss(self._order)
        middle, half = edges.mean(1)[:, None], 0.5 * np.diff(edges, axis=1)
        z, weights = (middle + half * x).ravel(), (half * rule).ravel()
        return z, weights, self._values(z)

    @functools.cached_property
    def _probes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Points z of every piece, so close that the link changes little between them, and the link there."""
        found, scale, model = [], np.sqrt(self._noise), self._model
        for a, b in self._ends:
            z = np.linspace(a, b, _PROBES)
            values = self._values(z)
            cells = np.arange(len(z) - 1)
            while len(cells):  # new cells are halved where the link changes or bends too much
                middle = 0.5 * (z[cells] + z[cells + 1])
                between, low, high = self._values(middle), values[cells], values[cells + 1]
                rough = (abs(high - low) > _STEEP * scale) | (abs(between - 0.5 * (low + high)) > _BENT * scale)
                rough &= z[cells + 1] - z[cells] > _CLOSEST
                cells = cells[rough]
                z, values = np.insert(z, cells + 1, middle[rough]), np.insert(values, cells + 1, between[rough])
                if len(z) > _MOST_NODES:
                    raise NotImplementedError(f"link {model.link!r} is too steep for noise={model.own.noise:g}")
                left = cells + np.arange(len(cells))
                cells = np.sort(np.concatenate([left, left + 1]))
            found.append((z, values))
        return found

    def _likely_outputs(self, z: np.ndarray, weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return evenly spaced outputs without those of density below _RARE; arguments as from :meth:`_nodes_for`."""
        mass = weights * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        likely, scale, model = values[abs(z) < _LIKELY], np.sqrt(self._noise), self._model
        if not mass.sum() > 1 - _LOST or not np.isfinite(values).all():
            raise NotImplementedError(f"link {model.link!r} has no value or no slope in a part of the prior")
        if self._noise > _MUCH_NOISE * (mass @ (values - mass @ values) ** 2):
            raise NotImplementedError(f"noise={model.own.noise:g} leaves next to nothing of link {model.link!r}")
        step, margin = self._steps[0] * scale, _BEYOND * scale
        count = (np.ptp(likely) + 2 * margin) / step
        if count > _MOST_OUTPUTS or len(z) > _MOST_NODES or count * len(z) > _MOST_PAIRS:
            raise NotImplementedError(f"link {model.link!r} is too steep for noise={model.own.noise:g}")
        y = likely.min() - margin + step * np.arange(int(count) + 1)
        density = self._sums(y, 1.0)[:, 0]
        return y[density > _RARE * density.max()]

    @double_precision()
    def _values(self, z: np.ndarray) -> np.ndarray:
        """Return the link at places (m,), padded to a power of two for few compiled programs."""
        padded = np.zeros(max(256, 2 ** int(np.ceil(np.log2(len(z))))))
        padded[: len(z)] = z
        return np.asarray(self._link(padded), float)[: len(z)]


def _divided(z: np.ndarray, values: np.ndarray, noise: float, least: float) -> np.ndarray:
    """Return intervals (m, 2) of z on each of which the link changes by at most a standard deviation of the noise.

    They fit the link ``values`` at probes ``z``, and prior variances of at least ``least``.

    Where cells were halved, an interval is at most two cells long: near a steep place a link may bend on a smaller
    scale than the scale on which it changes.
    """
    widths, moves = np.diff(z), np.minimum(abs(np.diff(values)) / np.sqrt(noise), 1.0)
    halved = widths < 0.75 * widths.max()
    steps = np.maximum(moves, 0.5 * halved) + widths * (1 / np.sqrt(least) + 1 / _LENGTH)
    length = np.append(0.0, np.cumsum(steps))
    edges = np.interp(np.linspace(0, length[-1], int(np.ceil(length[-1])) + 1), length, z)
    return np.stack([edges[:-1], edges[1:]], 1)


def noisy_averager(model: ObservedLink, outputs: int) -> NoisyAverager | None:
    """Return the averager of a model of one index, one token and one output; None for others, or if it fails."""
    if model.indices * model.tokens != 1 or outputs != 1:
        return None
    try:
        return NoisyAverager(model)
    except NotImplementedError:
        return None
