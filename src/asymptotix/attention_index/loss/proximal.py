"""Proximal maps of a loss: the learner's pre-activation after it has been fitted to one label.

In N coordinates, let z0 be the target's pre-activation, which gives the label y, and z the learner's before the fit:

    p(z0, z) = argmin_h  |h - z|^2 / (2 Sigma) + loss(y(z0), h).

The objective need not be convex. For the squared loss of two softmax rows it always is if Sigma < 1.04/beta^2; for
larger Sigma p may jump. Several descents are therefore made, by Newton's method with steps too short to leap from one
minimum into another, and the lowest end is kept.

Boncoraglio et al., arXiv:2509.24914, eq. (11), without the direction that is invisible to a softmax. Eqs. (56), (58)
and (59) have a further sqrt2 in the arguments of the softmax, which is a misprint.

Equation ai-prox of docs/theory/attention_index.md.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ...numerics import interrupts
from ...numerics.threads import in_threads
from .visible_directions import entry_places, logit_matrix, pair_weights, visible_basis

DISAGREEMENT = 1e-6
"""Two descents ended in different minima if their objectives differ by more than this."""

_WORK_PER_CALL = 3e5  # samples times (number of coordinates)^3 of one compiled call, which takes a few milliseconds
_MOST_BENT = 0.9617  # minus the lowest curvature of the squared loss of softmax rows, in units of beta^2
_TELLING = 2  # number of starts tried first: far apart, they detect 95 % of the samples with several minima, or more
_TIE = 1e-12  # a later start replaces an earlier one only if it is better by more than rounding


class ProximalPoints(NamedTuple):
    """Minimisers p of n samples, and whether starts at the same sample ended differently (``disagree``)."""

    y: np.ndarray  # the target's outputs, in the form that the map uses
    p: np.ndarray  # (n, N)
    value: np.ndarray  # the objective there (n,)
    disagree: np.ndarray  # whether the starts ended at different objectives (n,)


@functools.cache
def _row_curvature() -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of outputs y, and minus the lowest second derivative in u of 2 (sg(u) - y)^2 at each y."""
    y, sg = np.linspace(0, 1, 201), np.linspace(0, 1, 2001)[:, None]
    slope = sg * (1 - sg)
    curvature = 4 * slope**2 + 4 * (sg - y) * slope * (1 - 2 * sg)
    return y, -curvature.min(axis=0) + 1e-3  # margin for points between those of both grids


class ProximalMap(abc.ABC):
    """A loss as a function of N coordinates of the pre-activation; all arrays are batches of n samples."""

    visible_directions: int
    """Number N of coordinates."""

    @abc.abstractmethod
    def output(self, z0: np.ndarray) -> np.ndarray:
        """Return the target's outputs y (n, ...) at its coordinates z0 (n, N), in the form that other methods take."""

    @abc.abstractmethod
    def loss(self, y: np.ndarray, r: np.ndarray) -> np.ndarray:
        """Return the losses (n,) between outputs y (n, ...) and the learner's coordinates r (n, N)."""

    @abc.abstractmethod
    def starts(self, z0: np.ndarray, z: np.ndarray) -> Iterator[np.ndarray]:
        """Yield arrays (n, N) of starting points: first that for single descents, second the one farthest from it."""

    @abc.abstractmethod
    def descend(self, y: np.ndarray, z: np.ndarray, start: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the local minimisers (n, N) reached from ``start`` (n, N), and the objective there (n,)."""

    @abc.abstractmethod
    def derivative(self, y: np.ndarray, p: np.ndarray, Sigma: float) -> tuple[np.ndarray, np.ndarray]:
        """Return tr dp/dz (n,) and ||(dp/dz - 1)/Sigma||_F^2 (n,) at minimisers p, from dp/dz = (1 + Sigma H)^{-1}."""

    def may_jump(self, y: np.ndarray, Sigma: float) -> np.ndarray:
        """Return, as a mask (n,), which samples may have an objective with more than one minimum."""
        return np.ones(len(y), bool)

    def solve(
        self,
        z0: np.ndarray,
        z: np.ndarray,
        Sigma: float,
        previous: np.ndarray | None,
        multi_start: bool | np.ndarray,
        y: np.ndarray | None = None,
        thorough: bool = True,
    ) -> ProximalPoints:
        """Return the minimisers for the coordinates z0, z (n, N) of target and learner.

        Each descent begins at ``previous`` (n, N), or if None at the first start. If ``multi_start`` is True, two
        starts far apart are tried first. All starts are then tried at the samples where these two end in different
        minima or, if there are any and ``thorough`` is set, at all samples that may jump. If ``multi_start`` is a mask
        (n,), all starts are tried at its samples. ``y`` is output(z0), if that is known.
        """
        interrupts.check()
        y = self.output(z0) if y is None else y
        p, value = self.descend(y, z, next(self.starts(z0, z)) if previous is None else previous, Sigma)
        highest = value.copy()

        def look(at: np.ndarray, first: int, last: int | None = None) -> None:
            for start in itertools.islice(self.starts(z0[at], z[at]), first, last) if at.size else ():
                interrupts.check()  # compiled descents of many samples take up to a second
                other, other_value = self.descend(y[at], z[at], start, Sigma)
                highest[at] = np.maximum(highest[at], other_value)
                better = other_value < value[at] - _TIE
                p[at[better]], value[at[better]] = other[better], other_value[better]

        if multi_start is True:
            at = np.flatnonzero(self.may_jump(y, Sigma))
            look(at, 1 if previous is None else 0, _TELLING)
            told = np.flatnonzero(highest - value > DISAGREEMENT)
            look(at if thorough and told.size else told, _TELLING)
        elif multi_start is not False:
            look(np.flatnonzero(multi_start), 0)
        return ProximalPoints(y, p, value, highest - value > DISAGREEMENT)


def _product(samples: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return samples (n, k) times matrix (k, i) without BLAS, whose threads spin for longer than the product takes."""
    return np.einsum("nk,ki->ni", samples, matrix)


class SoftmaxMap(ProximalMap):
    """Proximal map of the squared loss ||sigma(target_beta h0) - sigma(beta h)||_F^2, sigma the softmax of each row."""

    def __init__(self, tokens: int, beta: float, target_beta: float) -> None:
        self.tokens, self.beta, self.target_beta = tokens, beta, target_beta
        rows = logit_matrix(tokens).reshape(tokens, tokens, -1)
        # the mean of a row is invisible to its softmax
        self.row_logits = (rows - rows.mean(axis=1, keepdims=True)).reshape(tokens * tokens, -1)
        self.visible_directions = self.row_logits.shape[1]

    def may_jump(self, y: np.ndarray, Sigma: float) -> np.ndarray:
        # The Hessian of a row's loss is affine in y, so that its least eigenvalue is lowest at an output y on a single
        # token. For any number of tokens the learner's weight is there on that token and one other. The squared
        # pre-activations of all rows add up to at most 2 |r|^2: hence 2 * 0.4808.
        return np.full(len(y), Sigma * self.beta**2 * 1.001 * _MOST_BENT >= 1)

    def starts(self, z0: np.ndarray, z: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the points nearest to z where chosen rows have the target's outputs: all rows, none, one, all but one.

        Each row's loss has a well at the target's logits and is flat far from it, so that a minimum is characterised by
        the rows that are in their wells.
        """
        solved = z0 * (self.target_beta / self.beta)
        for size in dict.fromkeys((self.tokens, 0, 1, self.tokens - 1)):
            for chosen in itertools.combinations(range(self.tokens), size):
                yield z + _product(solved - z, self._projection(chosen))

    def _in_parts(
        self, kernel: Callable[..., tuple[np.ndarray, np.ndarray]], *samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both outputs (n, ...) of a compiled kernel, applied to parts of the samples in threads."""
        work = len(samples[0]) * (64 + self.visible_directions**3) / _WORK_PER_CALL
        count = 1 if work < 1 else 2 * math.ceil(work / 2)  # even, for machines of two cores and more
        parts = zip(*(np.array_split(x, count) for x in samples), strict=True)
        first, second = zip(*in_threads(lambda part: kernel(*part), list(parts), first_alone=False), strict=True)
        return np.concatenate(first), np.concatenate(second)

    def _projection(self, chosen: tuple[int, ...]) -> np.ndarray:
        """Return the projection (N, N) of the coordinates onto the subspace that the chosen rows depend on."""
        seen = self.row_logits.reshape(self.tokens, self.tokens, -1)[list(chosen)].reshape(-1, self.visible_directions)
        return np.linalg.pinv(seen) @ seen


class TwoTokenMap(SoftmaxMap):
    """The softmax map for two tokens, by compiled code; an output y (n, 2) is the two diagonal entries."""

    def __init__(self, beta: float, target_beta: float) -> None:
        super().__init__(2, beta, target_beta)

    def may_jump(self, y: np.ndarray, Sigma: float) -> np.ndarray:
        # The lowest curvature in visible coordinates is at least four times the lower of the two rows' curvatures.
        grid, worst = _row_curvature()
        curvature = np.interp(y, grid, worst).max(axis=1)
        return 4 * Sigma * self.beta**2 * 1.001 * curvature >= 1

    def output(self, z0: np.ndarray) -> np.ndarray:
        return _diagonal(self.target_beta, z0)

    def loss(self, y: np.ndarray, r: np.ndarray) -> np.ndarray:
        # the two entries of a row have the same squared error
        return 2 * np.sum((_diagonal(self.beta, r) - y) ** 2, axis=1)

    def descend(self, y, z, start, Sigma):
        from . import softmax_pair

        def kernel(y, z, start):
            return softmax_pair.descend(y, z, start, Sigma, self.beta)

        return self._in_parts(kernel, y, z, start)

    def derivative(self, y, p, Sigma):
        from . import softmax_pair

        def kernel(y, p):
            return softmax_pair.derivative(y, p, Sigma, self.beta)

        return self._in_parts(kernel, y, p)


def _diagonal(beta: float, r: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    odd, even = r[:, 0], np.sqrt(2.0) * r[:, 1]
    return expit(beta * np.stack([even + odd, even - odd], axis=1))


class RowsMap(SoftmaxMap):
    """The softmax map for any number of tokens; an output y (n, T*T) is the whole matrix, row by row."""

    def __init__(self, tokens: int, beta: float, target_beta: float) -> None:
        super().__init__(tokens, beta, target_beta)
        # the compiled descents use all entries z_ab as coordinates
        self._to_entries = visible_basis(tokens), entry_places(tokens), pair_weights(tokens)

    def output(self, z0: np.ndarray) -> np.ndarray:
        return self._softmax(self.target_beta, z0)

    def loss(self, y: np.ndarray, r: np.ndarray) -> np.ndarray:
        return np.sum((self._softmax(self.beta, r) - y) ** 2, axis=1)

    def descend(self, y, z, start, Sigma):
        from . import softmax_rows

        def kernel(y, z, start):
            return softmax_rows.descend(*self._to_entries, y, z, start, Sigma, self.beta)

        return self._in_parts(kernel, y, z, start)

    def derivative(self, y, p, Sigma):
        from . import softmax_rows

        def kernel(y, p):
            return softmax_rows.derivative(*self._to_entries, y, p, Sigma, self.beta)

        return self._in_parts(kernel, y, p)

    def _softmax(self, beta: float, r: np.ndarray) -> np.ndarray:
        h = beta * _product(r, self.row_logits.T).reshape(len(r), self.tokens, self.tokens)
        A = np.exp(h - h.max(axis=2, keepdims=True))
        return (A / A.sum(axis=2, keepdims=True)).reshape(len(r), -1)


def softmax_map(tokens: int, beta: float, target_beta: float) -> SoftmaxMap:
    """Return the proximal map of the squared softmax loss that is fastest for the number of tokens."""
    return TwoTokenMap(beta, target_beta) if tokens == 2 else RowsMap(tokens, beta, target_beta)


def proximal_points(
    tokens: int, beta: float, target_beta: float, z0: np.ndarray, z: np.ndarray, Sigma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best minimisers p (n, N) of all starts, and tr dp/dz (n,), at visible coordinates z0, z (n, N)."""
    proximal = softmax_map(tokens, beta, target_beta)
    z0, z = (np.ascontiguousarray(x, dtype=float) for x in (z0, z))
    points = proximal.solve(z0, z, Sigma, None, multi_start=np.ones(len(z), bool))
    trace, _ = proximal.derivative(points.y, points.p, Sigma)
    return points.p, trace
