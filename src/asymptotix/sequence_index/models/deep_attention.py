"""Deep attention as a model of data: its tokens, its layers and its output.

Troiani et al., arXiv:2502.00901: tied layers, eqs. (2) to (7), with the row-stochastic matrix on the other side; untied
layers, (19) to (24); output sequence, (25) and (26); several heads, (27) to (36), with the factor 1/H of (28).

Equation si-attention of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ...core.describing.fingerprints import SAMPLE_LENGTH, condensed, far_points, fixed_points, program_digest
from ...core.specification import Specification
from ...numerics import checks
from ...numerics.precision import double_precision
from ...numerics.programs.snapshot import Snapshot, snapshot
from .sizes import refuse_large_attention

ACTIVATIONS = ("softmax", "linear")
OUTPUTS = ("attention", "sequence")
#: Largest depth, far above any that can be computed. A rank is stored per layer; 10^9 layers would fill the memory.
MOST_LAYERS = 10_000


class Row(NamedTuple):
    """Place of one index row in the network; numbers count from 0, ``query`` is False for keys and for tied layers."""

    query: bool
    layer: int
    head: int
    block: int
    component: int


@dataclass(frozen=True)
class DeepAttention(Specification):
    """A stack of attention layers with random weights, seen through its last attention matrix or its output.

    Tokens x in R^{D x M} and weights w_l in R^{P_l x D} are iid N(0, 1), and Z_l = w_l x / sqrt(D). With
    R the row-wise activation (softmax, or the identity), tied layers with one head are

        B_0 = I,   U_l = Z_l B_{l-1}^T,   B_l = (skip I + R(U_l^T U_l)) B_{l-1},   y = R(U_L^T U_L).

    *Untied* layers have separate weights for keys K_l and queries Q_l: the attention matrix is
    R((Q_l B_{l-1}^T)^T (K_l B_{l-1}^T)), and its row i belongs to query i. With H *heads* the data are H blocks x^g in
    R^{D x M}. Head h of a layer sees all blocks through its own rows, Z_l^{hg} = w_l^{hg} x^g / sqrt(D), and acts on
    block h:

        U_{l,h} = sum_g Z_l^{hg} B_{l-1,g}^T,     B_{l,h} = (skip I + R(U_{l,h}^T U_{l,h} / H)) B_{l-1,h},

    and H attention matrices are observed. Then D in alpha = N/D is the dimension of one block. With
    ``output="sequence"`` the output tokens are observed, which is equivalent to observing B_L. Its last layer has no
    skip connection unless ``last_skip``.

    In the order of the index rows, keys come before queries (untied); then rows are sorted by layer, head, block and
    component. For one head and rank one the order is by layer if tied, and K_1, ..., K_L, Q_1, ..., Q_L if untied.

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
        A callable takes the logits (..., M, M) and returns an array of the same shape; JAX must be able to trace it.
    tied : bool
        Queries equal keys.
    heads : int
        Number H of heads, and of blocks of the data.
    output : "attention" or "sequence"
        Observe the last attention matrix (of every head), or the whole output sequence.
    last_skip : bool
        Keep the skip connection in the last layer (only for ``output="sequence"``).

    Notes
    -----
    The row-stochastic matrix multiplies the token axis from the left, and there is no skip in the last layer.
    With the matrix on the other side the model is different (its plug-in error at zero overlap is 0.3907 instead of
    0.3869 for two layers, two tokens, skip 1).

    Examples
    --------
    >>> import asymptotix as asx
    >>> model = asx.DeepAttention(layers=2, tokens=2, rank=(1, 2), skip=1.0)
    >>> model.indices, model.row_labels
    (3, ('layer 1', 'layer 2 row 1', 'layer 2 row 2'))
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
    snapshots: tuple[tuple[str, Snapshot], ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        def clean(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("layers", "tokens", "heads"):
            clean(name, checks.integer(name, getattr(self, name), 1))
        if self.layers > MOST_LAYERS:
            raise ValueError(f"layers must be at most {MOST_LAYERS}, got {self.layers}")
        clean("skip", float(checks.non_negative("skip", self.skip)))
        if isinstance(self.rank, list | tuple):
            if len(self.rank) != self.layers:
                raise ValueError(f"rank must be one integer or one per layer ({self.layers}), got {self.rank!r}")
            clean("rank", tuple(checks.integer("rank", r, 1) for r in self.rank))
        else:
            clean("rank", checks.integer("rank", self.rank, 1))
        if not callable(self.activation):
            checks.one_of("activation", self.activation, ACTIVATIONS)
        elif isinstance(self.activation, type) or getattr(self.activation, "__hash__", None) is None:
            raise TypeError(
                "activation must be a hashable function, no class and no object with __eq__ but without __hash__, got"
                f" {self.activation!r}"
            )
        checks.one_of("output", self.output, OUTPUTS)
        for name in ("tied", "last_skip"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.last_skip and self.output != "sequence":
            raise ValueError(f"last_skip=True needs output='sequence', got output={self.output!r}")
        refuse_large_attention(self.layers, self.heads, self.tokens, self.indices)
        if callable(self.activation):
            shape = (self.tokens, self.tokens)
            clean("snapshots", (("activation", snapshot(self.activation, shape, leading=True)),))

    def function_values(self, field: str) -> np.ndarray | None:
        """Return values of a user's activation at fixed logits, by which a file identifies it; None for a name."""
        import jax.numpy as jnp

        if not callable(self.activation):
            return None
        with double_precision():
            return condensed(self.function("activation")(jnp.asarray(fixed_points(8, self.tokens, self.tokens))))

    def function_sample(self, field: str) -> np.ndarray | None:
        """Return values of a user's activation at many logits, some of them large; None for a name."""
        import jax.numpy as jnp

        if not callable(self.activation):
            return None
        with double_precision():
            logits = jnp.asarray(far_points(SAMPLE_LENGTH, self.tokens, self.tokens))
            return condensed(self.function("activation")(logits), SAMPLE_LENGTH)

    def function_code(self, field: str) -> str | None:
        if not callable(self.activation):
            return None
        with double_precision():
            return program_digest(self.function("activation"), (self.tokens, self.tokens))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank P_l of every layer, (L,): the number of rows of its weights."""
        return self.rank if isinstance(self.rank, tuple) else (self.rank,) * self.layers

    @property
    def indices(self) -> int:
        """Number P of index rows: sum of P_l, twice that if untied, H^2 times that with H heads."""
        total = sum(self.rank) if isinstance(self.rank, tuple) else self.layers * self.rank
        return total * (1 if self.tied else 2) * self.heads**2

    @property
    def rows(self) -> tuple[Row, ...]:
        """Descriptions of the index rows, in their order."""
        heads = range(self.heads)
        return tuple(
            Row(*place, component)
            for place in product((False,) if self.tied else (False, True), range(self.layers), heads, heads)
            for component in range(self.ranks[place[1]])
        )

    @property
    def groups(self) -> np.ndarray:
        """Block of the data on which every index row acts (P,), counted from 0."""
        return np.array([row.block for row in self.rows])

    @property
    def row_labels(self) -> tuple[str, ...]:
        """Names of the index rows: "layer 2", "layer 1 query row 2", "layer 1 head 1 block 2", ..."""
        return tuple(self._label(row) for row in self.rows)

    def _label(self, row: Row) -> str:
        parts = [f"layer {row.layer + 1}"]
        if not self.tied:
            parts.append("query" if row.query else "key")
        if self.heads > 1:
            parts.append(f"head {row.head + 1} block {row.block + 1}")
        if self.ranks[row.layer] > 1:
            parts.append(f"row {row.component + 1}")
        return " ".join(parts)
