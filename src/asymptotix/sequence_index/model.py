"""Deep attention as a model of data: what the tokens are, what the layers do, what is observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core import checks
from ..core.specification import Specification

ACTIVATIONS = ("softmax", "linear")
OUTPUTS = ("attention", "sequence")


@dataclass(frozen=True)
class DeepAttention(Specification):
    """A stack of tied single-head attention layers with random weights, seen through its last attention matrix.

    Tokens x in R^{D x M} are iid N(0, 1), the weights w_l in R^{P_l x D} too, Z_l = w_l x / sqrt(D). With
    R the row-wise activation (softmax, or the identity),

        B_0 = I,   U_l = Z_l B_{l-1}^T,   B_l = (skip I + R(U_l^T U_l)) B_{l-1},   y = R(U_L^T U_L).

    Parameters
    ----------
    layers : int
        Depth L.
    tokens : int
        Sequence length M.
    rank : int or tuple of int
        P_l, one for all layers or one per layer.
    skip : float
        Strength c >= 0 of the skip connection of all layers but the last.
    activation : "softmax", "linear" or callable
    tied : bool
        Queries equal keys.
    heads : int
    output : "attention" or "sequence"
        Observe the last attention matrix, or the whole output sequence.
    last_skip : bool
        Keep the skip connection in the last layer (only for ``output="sequence"``).

    Notes
    -----
    The row-stochastic matrix multiplies the token axis from the left, and there is no skip in the last layer.
    Written with the matrix on the other side the model is a different one (its plug-in error at zero overlap is
    0.3907 instead of 0.3869 for two layers, two tokens, skip 1).
    """

    layers: int
    tokens: int
    rank: int | tuple[int, ...] = 1
    skip: float = 1.0
    activation: str | Callable[..., Any] = "softmax"
    tied: bool = True
    heads: int = 1
    output: str = "attention"
    last_skip: bool = False

    def __post_init__(self) -> None:
        def clean(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        clean("layers", checks.integer("layers", self.layers, 1))
        clean("tokens", checks.integer("tokens", self.tokens, 1))
        clean("heads", checks.integer("heads", self.heads, 1))
        clean("skip", float(checks.non_negative("skip", self.skip)))
        if self.skip == float("inf"):
            raise ValueError("skip must be finite, got inf")
        if isinstance(self.rank, list | tuple):
            if len(self.rank) != self.layers:
                raise ValueError(f"rank must be one integer or one per layer ({self.layers}), got {self.rank!r}")
            clean("rank", tuple(checks.integer("rank", r, 1) for r in self.rank))
        else:
            clean("rank", checks.integer("rank", self.rank, 1))
        if not callable(self.activation):
            checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.one_of("output", self.output, OUTPUTS)
        for name in ("tied", "last_skip"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """P_l of every layer."""
        return self.rank if isinstance(self.rank, tuple) else (self.rank,) * self.layers

    @property
    def indices(self) -> int:
        """Number P of index rows, all layers together."""
        return sum(self.ranks)

    def bayes_optimal_theory(self) -> type:
        """The theory that :class:`asymptotix.BayesOptimal` uses for this model."""
        from .theory import SequenceIndexTheory

        return SequenceIndexTheory
