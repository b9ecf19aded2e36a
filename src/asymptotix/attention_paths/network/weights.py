"""Weights of a deep attention network, and their products along paths: Tiberi et al., arXiv:2405.15926, eq. (6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from .given_arrays import count_of, kind_of, per_layer, require_entries

#: Scalings of given weights: W with entries of order one, as in this package, or w = W/sqrt(fan-in), as in most
#: training code, where a layer does not divide by sqrt(fan-in).
SCALINGS = ("order one", "fan_in")


class Weights(NamedTuple):
    """Weights of the network, each of order one: the network itself divides by the square roots of the fan-in.

    Attributes
    ----------
    V0 : array (N, N0)
        Projection of the tokens.
    V : sequence of arrays (H_l, N, N)
        Values V^{l,h}, one array per layer; rows are outputs. Unequal widths fit too: (H_l, N_{l+1}, N_l).
    a : array (N,) or (C, N)
        Readout, of one output or of C.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> rng = np.random.default_rng(0)
    >>> weights = asx.Weights(rng.standard_normal((8, 4)), [rng.standard_normal((2, 8, 8))], rng.standard_normal(8))
    >>> asx.empirical_order_parameter(weights).shape                     # one layer of two heads: two paths
    (2, 2)
    """

    V0: np.ndarray
    V: Sequence[np.ndarray]
    a: np.ndarray


def checked_weights(weights: object, heads: Sequence[int] | None = None, features: int | None = None) -> Weights:
    """Return weights as float arrays, or raise an error that names the wrong one.

    ``heads`` (H_1, ..., H_L) and ``features`` (N0) are expected sizes; None accepts any.
    """
    if not isinstance(weights, Weights):
        raise TypeError(f"weights must be Weights(V0, V, a), got {kind_of(weights)}")
    V0 = checks.array_of_shape("weights.V0", weights.V0, (None, features))
    require_entries("weights.V0", V0)
    given = per_layer("weights.V", weights.V, "(heads, width out, width in)")
    if heads is not None and len(given) != len(heads):
        raise ValueError(f"weights.V must hold one array per layer, {len(heads)}, got {len(given)}")
    width, V = len(V0), []
    for layer, matrices in enumerate(given):
        count = None if heads is None else heads[layer]
        V.append(checks.array_of_shape(f"weights.V[{layer}]", matrices, (count, None, width)))
        require_entries(f"weights.V[{layer}]", V[-1])
        width = V[-1].shape[1]
    axes = checks.dimensions("weights.a", weights.a)
    a = checks.array_of_shape("weights.a", weights.a, (None,) * (axes - 1) + (width,))
    if a.ndim not in (1, 2) or a.size == 0:
        raise ValueError(f"weights.a must have shape ({width},) or (outputs, {width}), got {a.shape}")
    return Weights(V0, tuple(V), a)


def path_products(weights: Weights) -> np.ndarray:
    """Return a^T V^{L,h_L} ... V^{1,h_1} per path, without factors of the widths, (paths, N_1) or (paths, C, N_1)."""
    E = np.atleast_2d(weights.a)[None]
    paths = math.prod(len(V) for V in weights.V)
    what = f"the weights of {count_of(paths)} paths"
    refuse_beyond_memory(16 * paths * len(E[0]) * weights.V0.shape[0], what, "fewer heads or layers")
    for V in reversed(weights.V):
        E = E[None] @ V[:, None]
        E = E.reshape(-1, *E.shape[2:])
    return E if weights.a.ndim == 2 else E[:, 0]
