"""Averages of a link of one index and one token with Gaussian noise, by deterministic quadrature.

With omega ~ N(0, q), the output has the density Z_out(y, omega) = int dz N(z; omega, v) N(y; g(z), noise), so that an
average is an integral over omega and y,

    E[f] = int domega N(omega; 0, q) int dy Z_out(y, omega) f(y, omega),

where f is made of the moments of z under the integrand of Z_out. The noise makes everything smooth in y on its own
scale, and the prior in omega: sums over even grids converge faster than any power. Along z an interval of a
Gauss-Legendre rule is no longer than a standard deviation of the prior and of the likelihood.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np

from .....numerics.precision import double_precision
from .....numerics.threads import available_cores, compiler_installed, each_in_parallel
from ....models.link import LinkModel
from ...protocol import Averages, OperatorAverager
from ..link_channel import flat_link
from .pieces import pieces

#: Largest |z| of a node, of one that decides which outputs are asked, and points of a piece that show how steep it is.
_FARTHEST, _LIKELY, _PROBES = 7.0, 6.0, 256
#: Nodes of an interval, and its greatest length.
_ORDER, _LENGTH = 5, 0.25
#: Steps of y and of omega, in standard deviations of the noise and of omega given z: between two roots a posterior
#: changes its mind on a scale that is several times smaller.
STEPS = 0.3, 0.2
#: Standard deviations of the noise beyond the values of the link up to which there are outputs.
_BEYOND = 6.0
#: Outputs and nodes at most; their densities are not asked for below this.
_MOST_OUTPUTS, _MOST_NODES, _RARE = 2**15, 2**17, 1e-11
#: Outputs that are summed at once.
_PART = 32
#: Below this variance nodes do not become closer.
_LEAST_VARIANCE = 1e-8


class NoisyAverager(OperatorAverager):
    """Averages at one overlap.

    Parameters
    ----------
    model : LinkModel
        Of one index, one token, one output and noise.

    Raises
    ------
    NotImplementedError
        Where the link takes too many nodes: it is too steep for its noise, or has too many pieces.
    """

    #: Seen against steps of half the size and twice the nodes, for 1-q from 1 to 1e-3.
    accuracy = 1e-5

    def __init__(self, model: LinkModel, steps: tuple[float, float] = STEPS) -> None:
        self._model, self._noise, self._steps = model, float(model.noise), steps
        self._link = jax.jit(jax.vmap(lambda z: flat_link(model, z[None])[0]))
        ends = np.clip(pieces(model).ends, -_FARTHEST, _FARTHEST)
        self._ends = ends[ends[:, 1] > ends[:, 0]]
        self._outputs = np.array([-np.inf, np.inf])  # none of the nodes is too far from them
        self._outputs = self._likely_outputs(*self._nodes_for(1.0))
        self._nodes = functools.lru_cache(maxsize=8)(self._nodes_for)
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
        """E[g^2], E[G^2] and E[log Z_out]."""
        from .noisy_kernel import sums

        last = self._last
        if last is not None and last[0] == v:
            return last[1]
        z, weights, values = self._nodes(float(2.0 ** np.floor(np.log2(max(v, _LEAST_VARIANCE)))))
        y, q = self._outputs, max(1 - v, 0.0)
        found = np.zeros((len(y), 4))

        def work(first: int) -> None:
            part = slice(first, first + _PART)
            sums(y[part], z, weights, values, self._noise, q, v, self._steps[1], found[part])

        each_in_parallel(work, range(0, len(y), _PART), available_cores())
        mass, *totals = found.sum(0)
        self._last = v, np.array(totals) / mass
        return self._last[1]

    def _nodes_for(self, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes, their weights and the link there, for variances from ``least`` on."""
        lengths = [_lengths(a, b, self._values, self._noise, least) for a, b in self._ends]
        count = _ORDER * sum(length[-1] for _, length in lengths)
        if not count < _MOST_NODES:
            raise NotImplementedError(f"{count:.0f} nodes are too many for link {self._model.link!r}")
        edges = np.concatenate([_divided(*one) for one in lengths])
        x, rule = np.polynomial.legendre.leggauss(_ORDER)
        middle, half = edges.mean(1)[:, None], 0.5 * np.diff(edges, axis=1)
        z, weights = (middle + half * x).ravel(), (half * rule).ravel()
        values = self._values(z)
        margin = _BEYOND * np.sqrt(self._noise)
        seen = (values > self._outputs[0] - margin) & (values < self._outputs[-1] + margin)
        return z[seen], weights[seen], values[seen]

    def _likely_outputs(self, z: np.ndarray, weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        """An even grid of the outputs that are likely enough."""
        likely, step = values[abs(z) < _LIKELY], self._steps[0] * np.sqrt(self._noise)
        margin = _BEYOND * np.sqrt(self._noise)
        count = (np.ptp(likely) + 2 * margin) / step
        if not count < _MOST_OUTPUTS:
            raise NotImplementedError(f"{count:.0f} outputs are too many for link {self._model.link!r}")
        y = likely.min() - margin + step * np.arange(int(count) + 1)
        density = np.zeros(len(y))
        mass = weights * np.exp(-0.5 * z**2)
        for part in np.array_split(np.arange(len(z)), 1 + len(z) * len(y) // 2**22):
            density += np.exp(-0.5 * (y[:, None] - values[part]) ** 2 / self._noise) @ mass[part]
        return y[density > _RARE * density.max()]

    @double_precision()
    def _values(self, z: np.ndarray) -> np.ndarray:
        """The link at places (m,); compiled for powers of two."""
        padded = np.zeros(max(256, 2 ** int(np.ceil(np.log2(len(z))))))
        padded[: len(z)] = z
        return np.asarray(self._link(padded), float)[: len(z)]


def _lengths(
    a: float, b: float, values: Callable[[np.ndarray], np.ndarray], noise: float, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Places from a to b, and how far they are from a in units that an interval may be long, or more than that."""
    z = np.linspace(a, b, _PROBES)
    steps = abs(np.diff(values(z))) / np.sqrt(noise) + np.diff(z) * (1 / np.sqrt(least) + 1 / _LENGTH)
    return z, np.append(0.0, np.cumsum(steps))


def _divided(z: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Intervals (m, 2) of equal length."""
    edges = np.interp(np.linspace(0, length[-1], int(np.ceil(length[-1])) + 1), length, z)
    return np.stack([edges[:-1], edges[1:]], 1)


def noisy_averager(model: LinkModel, outputs: int) -> NoisyAverager | None:
    """That of a model, where it has one index, one token and one output and there is a compiler; else None."""
    if model.indices * model.tokens != 1 or outputs != 1 or not compiler_installed():
        return None
    try:
        return NoisyAverager(model)
    except NotImplementedError:
        return None
