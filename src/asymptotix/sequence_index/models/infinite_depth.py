"""Attention of infinite depth: all layers but the last average themselves out.

Troiani et al., arXiv:2502.00901, eqs. (37) to (45), whose limit is the first order in 1/beta of the one given here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...core.specification import Specification
from ...numerics import checks
from ...numerics.quadrature import sobol_normals
from .. import streams
from . import rank_one
from .deep_attention import ACTIVATIONS

LIMITS = ("ode", "first_order")
#: Draws of the index rows of one layer; they leave an error of about 3e-5 in the average attention matrix.
_DRAWS = 2**13


@dataclass(frozen=True)
class InfiniteDepthAttention(Specification):
    """The last layer of tied attention whose depth L tends to infinity with skip connections of strength beta L.

    Rescaled so that the skip connection has strength one, B_l = (I + R(U_l^T U_l)/(beta L)) B_{l-1}: each layer changes
    little, and independent layers average themselves out. In the limit B does not fluctuate,

        dB/ds = (1/beta) E_Z[R(U^T U)] B,    U = Z B^T,    B(0) = I,    0 <= s <= 1,

    y = R(U_L^T U_L) with U_L = Z_L B(1)^T, and only the last layer can be learned. B commutes with permutations of the
    tokens, so y says of Z_L what it would say without the other layers: overlaps and thresholds are those of one layer,
    at any beta; what beta changes is the output, and with it the prediction errors. A finite depth differs by
    O(1/sqrt(L)).

    Parameters
    ----------
    tokens : int
        Sequence length M.
    beta : float
        Strength of the skip connections per layer, positive. With linear activation and ``limit="ode"`` it must exceed
        twice the rank, for B = I/sqrt(1 - 2 s rank/beta) is infinite otherwise.
    rank : int
        P_l, the same for all layers.
    limit : "ode" or "first_order"
        The limit above, or its first order in 1/beta, B = I + E_Z[R(Z^T Z)]/beta, which is no limit of the model at
        finite beta: its rows sum to 1 + 1/beta (softmax), where those of the limit sum to exp(1/beta).
    activation : "softmax" or "linear"
    """

    tokens: int
    beta: float
    rank: int = 1
    limit: str = "ode"
    activation: str = "softmax"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", checks.integer("tokens", self.tokens, 1))
        object.__setattr__(self, "rank", checks.integer("rank", self.rank, 1))
        object.__setattr__(self, "beta", float(checks.positive("beta", self.beta)))
        checks.one_of("limit", self.limit, LIMITS)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        if self.activation == "linear" and self.limit == "ode" and self.beta <= 2 * self.rank:
            raise ValueError(
                f"beta must exceed twice the rank ({2 * self.rank}) with linear activation: the output is infinite"
                f" otherwise, got {self.beta}"
            )

    @property
    def indices(self) -> int:
        """Number of index rows: those of the last layer."""
        return self.rank

    @property
    def row_labels(self) -> tuple[str, ...]:
        """Names of the index rows."""
        return ("last layer",) if self.rank == 1 else tuple(f"last layer row {p + 1}" for p in range(self.rank))

    @property
    def mixing(self) -> np.ndarray:
        """B(1), a matrix (M, M)."""
        return limiting_mixing(self)

    def evaluate(self, Z: Any) -> Any:
        """The output y (..., M, M) of the last index rows Z (..., P, M), NumPy or JAX."""
        U = Z @ self.mixing.T
        return rank_one.activate(U.swapaxes(-1, -2) @ U, self.activation)


@lru_cache(maxsize=64)
def limiting_mixing(model: InfiniteDepthAttention) -> np.ndarray:
    """B(1): a number on the differences of tokens, another one on their mean."""
    M, rank, beta = model.tokens, model.rank, model.beta
    mean = np.full((M, M), 1 / M)

    def rates(b: np.ndarray) -> np.ndarray:
        """Eigenvalues of E[R(U^T U)] on differences and on the mean, where those of B are b."""
        if model.activation == "linear":
            return rank * b**2
        return np.array([_average_on_differences(M, rank, b), 1.0])

    if model.limit == "first_order":
        b = 1 + rates(np.ones(2)) / beta
    else:
        from scipy.integrate import solve_ivp  # here: it takes longer to load than all the rest of the model

        found = solve_ivp(lambda s, b: rates(b) * b / beta, (0, 1), np.ones(2), method="DOP853", rtol=1e-8, atol=1e-10)
        b = found.y[:, -1]
    return b[0] * (np.eye(M) - mean) + b[1] * mean


def _average_on_differences(M: int, rank: int, b: np.ndarray) -> float:
    """Eigenvalue of E[R(U^T U)], row-stochastic and symmetric under permutations, on the differences of tokens."""
    if M == 1:
        return 1.0
    Z = _normals(rank, M)
    centre = Z.mean(-1, keepdims=True)
    U = b[0] * (Z - centre) + b[1] * centre
    R = rank_one.activate(np.swapaxes(U, -1, -2) @ U, "softmax")
    stay = float(np.einsum("nii->", R) / (len(R) * M))
    return stay - (1 - stay) / (M - 1)


@lru_cache(maxsize=4)
def _normals(rank: int, M: int) -> np.ndarray:
    return sobol_normals(_DRAWS, rank * M, streams.INFINITE_DEPTH_NODES).reshape(_DRAWS, rank, M)
