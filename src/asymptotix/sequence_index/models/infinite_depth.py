"""Attention of infinite depth: all layers but the last self-average.

Troiani et al., arXiv:2502.00901, eqs. (37) to (45). Their limit is the first order in 1/beta of the limit given here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...core.specification import Specification
from ...numerics import checks
from ...numerics.arrays import Array
from ...numerics.quadrature import sobol_normals
from .. import streams
from . import rank_one
from .deep_attention import ACTIVATIONS
from .sizes import refuse_large_attention

LIMITS = ("ode", "first_order")
#: Smallest beta. Below it the squares of 1/beta, the size of outputs of linear layers, leave the range of floats.
_SMALLEST_BETA = 1e-100
#: Time t = s/beta after which only the mean of the tokens still grows.
_LAST = 40.0
#: Number of draws of the index rows of one layer; the error of the average attention matrix is about 3e-5.
_DRAWS = 2**13


@dataclass(frozen=True)
class InfiniteDepthAttention(Specification):
    """The last layer of tied attention whose depth L tends to infinity with skip connections of strength beta L.

    Rescaled so that the skip connection has strength one, B_l = (I + R(U_l^T U_l)/(beta L)) B_{l-1}. Each layer changes
    B little, and the sum over independent layers self-averages. In the limit B does not fluctuate,

        dB/ds = (1/beta) E_Z[R(U^T U)] B,    U = Z B^T,    B(0) = I,    0 <= s <= 1,

    y = R(U_L^T U_L) with U_L = Z_L B(1)^T, and only the last layer can be learned. B commutes with permutations of the
    tokens, so that y carries the same information on Z_L as without the other layers. Hence overlaps and thresholds are
    those of one layer at any beta; beta changes the output, and with it the prediction errors. A finite depth differs
    by O(1/sqrt(L)).

    Parameters
    ----------
    tokens : int
        Sequence length M.
    beta : float
        Strength of the skip connections per layer, positive. With linear activation and ``limit="ode"`` it must exceed
        twice the rank: otherwise B = I/sqrt(1 - 2 s rank/beta) becomes infinite.
    rank : int
        P_l, the same for all layers.
    limit : "ode" or "first_order"
        The limit above, or its first order in 1/beta, B = I + E_Z[R(Z^T Z)]/beta. The first order is not a limit of the
        model at finite beta: with softmax its rows sum to 1 + 1/beta, the rows of the limit to exp(1/beta).
    activation : "softmax" or "linear"

    Examples
    --------
    >>> import asymptotix as asx
    >>> model = asx.InfiniteDepthAttention(tokens=2, beta=2.0)
    >>> model.mixing.sum(axis=1).round(4)                                # e^(1/beta)
    array([1.6487, 1.6487])
    """

    tokens: int
    beta: float
    rank: int = 1
    limit: str = "ode"
    activation: str = "softmax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", checks.integer("tokens", self.tokens, 1))
        object.__setattr__(self, "rank", checks.integer("rank", self.rank, 1))
        refuse_large_attention(1, 1, self.tokens, self.rank)
        object.__setattr__(self, "beta", float(checks.positive("beta", self.beta)))
        if self.beta < _SMALLEST_BETA:
            raise ValueError(f"beta must be at least {_SMALLEST_BETA:g}, got {self.beta}")
        checks.one_of("limit", self.limit, LIMITS)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        if self.activation == "linear" and self.limit == "ode" and self.beta <= 2 * self.rank:
            raise ValueError(
                f"beta must exceed twice the rank ({2 * self.rank}) with linear activation: the output is infinite"
                f" otherwise, got {self.beta}"
            )

    @property
    def indices(self) -> int:
        """Number of index rows of the last layer; other layers have none."""
        return self.rank

    @property
    def row_labels(self) -> tuple[str, ...]:
        """Names of the index rows."""
        return ("last layer",) if self.rank == 1 else tuple(f"last layer row {p + 1}" for p in range(self.rank))

    @property
    def mixing(self) -> np.ndarray:
        """B(1), a matrix (M, M); infinite if exp(1/beta) exceeds the largest float, while the output stays finite."""
        on_differences, on_mean = np.exp(np.clip(limiting_logs(self), None, 710.0))
        mean = np.full((self.tokens, self.tokens), 1 / self.tokens)
        return on_differences * (np.eye(self.tokens) - mean) + on_mean * mean

    def evaluate(self, Z: Array) -> Array:
        """Return the output y (..., M, M) of the last layer's index rows Z (..., P, M), NumPy or JAX."""
        if self.activation == "linear":
            U = Z @ self.mixing.T
            return U.swapaxes(-1, -2) @ U
        return _softmax_output(Z, limiting_logs(self))


def _softmax_output(Z: Array, logs: np.ndarray) -> Array:
    """Return R(U^T U), U = Z B^T, from ``logs`` = (log b_0, log b_1), b_0 and b_1 the eigenvalues of B.

    b_0 acts on differences of tokens, b_1 on their mean. With c the mean of the tokens and d_i = z_i - c,
    u_i.u_j = b_0^2 d_i.d_j + b_0 b_1 c.d_j + (a term equal for all j that grows like b_1^2). The softmax does not
    depend on the last term, and without it there is no cancellation. The size of b is factored out of the logits and
    limited to a number at which the softmax is saturated.
    """
    centre = Z.mean(-1, keepdims=True)
    away = Z - centre
    own, shared = (float(np.exp(x - logs.max())) for x in logs)
    logits = own * (away.swapaxes(-1, -2) @ away) + shared * (centre.swapaxes(-1, -2) @ away)
    largest = float(np.log(np.finfo(np.dtype(Z.dtype)).max)) - 20.0  # logits themselves stay below exp(20)
    size = float(np.exp(min(logs[0] + logs.max(), largest)))
    return rank_one.activate(size * (logits - logits.max(-1, keepdims=True)), "softmax")


@lru_cache(maxsize=64)
def limiting_logs(model: InfiniteDepthAttention) -> np.ndarray:
    """Return (log b_0, log b_1), for the eigenvalues of B(1) on differences of tokens (b_0) and on their mean (b_1).

    With softmax, in the time t = s/beta, b_1 is exp(t), and log b_0 grows at the rate lambda(t) = O(b_0/b_1). After
    t = 40 log b_0 is constant to the last digit.
    """
    M, rank, beta = model.tokens, model.rank, model.beta
    if model.activation == "linear":
        b = 1 / np.sqrt(1 - 2 * rank / beta) if model.limit == "ode" else 1 + rank / beta
        return np.full(2, np.log(b))
    if model.limit == "first_order":
        return np.log1p(np.array([_average_on_differences(M, rank, np.zeros(2)), 1.0]) / beta)
    if M == 1:
        return np.full(2, 1 / beta)
    return np.array([_log_on_differences(M, rank, min(1 / beta, _LAST)), 1 / beta])


@lru_cache(maxsize=64)
def _log_on_differences(M: int, rank: int, time: float) -> float:
    """Return log b_0, b_0 the eigenvalue of B on differences of tokens, at time t = s/beta <= 1/beta, for softmax."""
    from scipy.integrate import solve_ivp  # imported here because loading it takes longer than all else

    found = solve_ivp(
        lambda t, log: [_average_on_differences(M, rank, np.array([log[0], t]))],
        (0, time), [0.0], method="DOP853", rtol=1e-6, atol=1e-8,
    )  # fmt: skip
    if not found.success:
        raise ArithmeticError(f"the mixing of {M} tokens up to the time {time:g} was not integrated: {found.message}")
    return float(found.y[0, -1])


def _average_on_differences(M: int, rank: int, logs: np.ndarray) -> float:
    """Return the eigenvalue of E[R(U^T U)] on vectors over M tokens that sum to zero.

    ``logs`` (2,) are the log-eigenvalues of B, see :func:`_softmax_output`.
    """
    if M == 1:
        return 1.0
    R = _softmax_output(_normals(rank, M), logs)
    stay = float(np.einsum("nii->", R) / (len(R) * M))
    return stay - (1 - stay) / (M - 1)


@lru_cache(maxsize=4)
def _normals(rank: int, M: int) -> np.ndarray:
    return sobol_normals(_DRAWS, rank * M, streams.INFINITE_DEPTH_NODES).reshape(_DRAWS, rank, M)
