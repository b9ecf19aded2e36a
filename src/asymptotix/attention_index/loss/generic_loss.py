"""Averages of a loss that the user writes in JAX, and of its proximal map.

The generic setting of Boncoraglio et al., arXiv:2509.24914, Appendix B.1, eqs. (25), (26).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics import checks
from ...numerics.precision import double_precision
from ...numerics.programs.compiled import compiled
from ...numerics.programs.snapshot import snapshot
from .batched_newton import BatchedNewton, in_parts
from .loss_average import NodeAverage
from .proximal import ProximalMap
from .quadrature_nodes import sobol_nodes
from .visible_directions import pair_weights, symmetric


class GenericMap(ProximalMap):
    """Proximal map of a loss(y, h), y = teacher(R), in all L coordinates of h; see :class:`GenericLoss`."""

    def __init__(
        self, tokens: int, loss: Callable, teacher: Callable, convex: bool = False, length: float = 1.0
    ) -> None:
        self.tokens, self._convex = tokens, convex
        self._matrix = symmetric(tokens, np.diag(pair_weights(tokens)))
        self.visible_directions = self._matrix.shape[1]
        self._output = compiled(jax.vmap(lambda r: teacher(self._preactivation(r))))

        def coordinate_loss(y: jax.Array, r: jax.Array) -> jax.Array:
            return loss(y, self._preactivation(r))

        self._loss = compiled(jax.vmap(coordinate_loss))
        with double_precision():
            entries = jax.ShapeDtypeStruct((tokens, tokens), jnp.float64)
            y = jax.eval_shape(teacher, entries)
            shape = jax.eval_shape(loss, y, entries)
            if getattr(shape, "shape", None) != ():
                raise ValueError(f"loss must return a scalar for y = teacher(R) and h, got {shape}")
        self._newton = BatchedNewton(coordinate_loss, lambda step: jnp.abs(self._matrix @ step).max() / length)

    def _preactivation(self, r: jax.Array) -> jax.Array:
        return jnp.reshape(self._matrix @ r, (self.tokens, self.tokens))

    def output(self, z0: np.ndarray) -> np.ndarray:
        return in_parts(lambda _, *part: (self._output(*part),), z0)[0]

    def loss(self, y: np.ndarray, r: np.ndarray) -> np.ndarray:
        return in_parts(lambda _, *part: (self._loss(*part),), y, r)[0]

    def may_jump(self, y: np.ndarray, Sigma: float) -> np.ndarray:
        return np.full(len(y), not self._convex)

    def starts(self, z0: np.ndarray, z: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the starting points z, where the quadratic term vanishes, and z0, the target's own pre-activation."""
        yield z
        yield z0

    def descend(self, y, z, start, Sigma):
        p, value = self._newton.descend(y, z, start, Sigma)
        if not np.isfinite(value).all():
            worst = p[~np.isfinite(value)][0]
            words = f"loss must be finite and twice differentiable, got {value.min()} at coordinates {worst}"
            raise FloatingPointError(words)
        return p, value

    def derivative(self, y, p, Sigma):
        return self._newton.derivative(y, p, Sigma)


@functools.lru_cache(maxsize=8)
def _kept_map(tokens: int, loss: Callable, teacher: Callable, convex: bool, length: float) -> GenericMap:
    """Return a map from a cache for all nodes and problems: compilation takes longer than most averages."""
    return GenericMap(tokens, loss, teacher, convex, length)


class GenericLoss(NodeAverage):
    """A loss ``loss(y, h)`` between the target's output y = teacher(R) and the learner's pre-activation h.

    Parameters
    ----------
    tokens : int
        T.
    loss : callable
        JAX function of y and of the symmetric h (T, T), with a scalar value of order one, twice differentiable in h. If
        its shape changes over distances in h much below ``length``, descents may jump over minima.
    teacher : callable
        JAX function of the target's symmetric pre-activation R (T, T).
    convex : bool
        Whether the loss is known to be convex in h, so that there is only one minimum to find.
    length : float
        Largest step of a descent in an entry of h. Larger: descents may jump over minima. Smaller: more steps.
    count : int
        Number of scrambled Sobol nodes, a power of two.
    seed : int
        Randomisation of the nodes.

    Notes
    -----
    All L = T(T+1)/2 coordinates are kept, because a loss, unlike a softmax, may depend on a common shift of h. Along a
    direction on which the loss does not depend, p = z; such a direction contributes to ``trace`` only.

    Examples
    --------
    Cross-entropy of a softmax learner with a softmax target:

    >>> import jax
    >>> def cross_entropy(y, h):
    ...     return -(y * jax.nn.log_softmax(h, axis=1)).sum()
    >>> average = GenericLoss(2, cross_entropy, lambda R: jax.nn.softmax(R, axis=1))
    >>> averages = average(1.75, 1.3, 1.3, 0.5, multi_start=True)
    """

    def __init__(
        self,
        tokens: int,
        loss: Callable,
        teacher: Callable,
        *,
        convex: bool = False,
        length: float = 1.0,
        count: int = 2**12,
        seed: int = 0,
    ) -> None:
        for name, function in (("loss", loss), ("teacher", teacher)):
            if not callable(function):
                raise TypeError(f"{name} must be a JAX function, got {function!r}")
        T = int(checks.integer("tokens", tokens, 1))
        proximal = _kept_map(T, snapshot(loss, (T, T), (T, T)), snapshot(teacher, (T, T)), convex, length)
        super().__init__(proximal, *sobol_nodes(count, proximal.visible_directions, seed))
