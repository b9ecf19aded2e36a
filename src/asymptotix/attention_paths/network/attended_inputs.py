"""Inputs of a network: tokens alone, or tokens together with the attention matrices that act on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.specification import Specification
from ...numerics import checks
from .given_arrays import checked_tokens, per_layer, require_entries, shapes_of

_COLUMN_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class AttendedInputs(Specification):
    """Tokens together with the attention matrices that act on them.

    Parameters
    ----------
    tokens : array (examples, T, N0)
        x_t, one row per token.
    attention : sequence of arrays (examples, H_l, T, T)
        A_l[mu, h, s, t] = Om^{l,h}_{st} of example mu, first layer first; s is the key, t the query. Every column
        sums to one over the keys: sum_s Om_{st} = 1.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> tokens = np.random.default_rng(0).standard_normal((5, 3, 4))     # 5 examples of 3 tokens of 4 features
    >>> uniform = np.full((5, 2, 3, 3), 1 / 3)                           # 2 heads that look at all tokens alike
    >>> inputs = asx.AttendedInputs(tokens, [uniform])
    >>> asx.AttentionPaths(layers=1, heads=2).attended(inputs).shape     # examples, paths, features
    (5, 2, 4)
    """

    tokens: np.ndarray
    attention: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        tokens = checked_tokens("tokens", self.tokens)
        examples, length, _ = tokens.shape
        matrices = []
        for layer, given in enumerate(per_layer("attention", self.attention, "(examples, heads, keys, queries)")):
            name = f"attention[{layer}]"
            matrix = checks.array_of_shape(name, given, (examples, None, length, length))
            require_entries(name, matrix)
            _check_columns(name, matrix)
            matrices.append(matrix)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "attention", tuple(matrices))

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"AttendedInputs(tokens: {shapes_of([self.tokens])}; attention: {shapes_of(self.attention)})"


#: Inputs of a network: bare tokens (examples, T, N0), or tokens with their attention.
Inputs = np.ndarray | AttendedInputs


def tokens_of(inputs: object) -> np.ndarray:
    """Return the tokens, (examples, T, N0), of tokens or AttendedInputs; their shape is checked, not their entries."""
    tokens = inputs.tokens if isinstance(inputs, AttendedInputs) else checks.real_array("inputs", inputs)
    if tokens.ndim != 3 or tokens.size == 0:
        raise ValueError(f"inputs must have shape (examples, tokens, features) and not be empty, got {tokens.shape}")
    return tokens


def in_chunks(inputs: Inputs, step: int) -> Iterator[Inputs]:
    """Yield consecutive parts of the inputs, of at most ``step`` examples each and of the same type."""
    tokens = tokens_of(inputs)
    for first in range(0, len(tokens), step):
        part = slice(first, first + step)
        if isinstance(inputs, AttendedInputs):
            yield AttendedInputs(tokens[part], tuple(matrix[part] for matrix in inputs.attention))
        else:
            yield tokens[part]


def _check_columns(name: str, matrix: np.ndarray) -> None:
    off = np.abs(matrix.sum(axis=-2) - 1)
    if off.max() > _COLUMN_SUM_TOLERANCE:
        raise ValueError(
            f"{name} must have columns that sum to one over the keys (the last axis but one), got sums that are off "
            f"by up to {off.max():.3g}; a matrix with queries before keys needs its last two axes swapped"
        )
