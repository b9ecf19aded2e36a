"""Sequence multi-index models with a link given by the user: Troiani et al., arXiv:2502.00901, eq. (1).

Equation si-model of docs/theory/sequence_index.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.describing.fingerprints import SAMPLE_LENGTH, condensed, far_points, fixed_points, program_digest
from ...core.specification import Specification
from ...numerics import checks
from ...numerics.arrays import Array
from ...numerics.precision import double_precision
from ...numerics.programs.snapshot import Snapshot, snapshot
from .link_trial import check_kind, try_link


@dataclass(frozen=True)
class SequenceIndex(Specification):
    """Outputs y = g(Z) + sqrt(noise) N(0, 1) of the P x M index matrix Z = W x / sqrt(D).

    Tokens x in R^{D x M} and weights W in R^{P x D} are iid N(0, 1), so that the entries of Z are iid N(0, 1) too.

    Parameters
    ----------
    link : callable
        g, any function that JAX can trace, of the array Z (P, M), returning a number or an array.
    indices : int
        Number P of index rows.
    tokens : int
        Number M of tokens.
    noise : float
        Variance of the noise on every output. 0 means no noise: none is ever added to make a computation easier.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> SequenceIndex(lambda Z: jnp.tanh(Z).sum(), indices=1, tokens=2, noise=0.1).tokens
    2
    """

    link: Callable[..., Any]
    indices: int
    tokens: int
    noise: float = 0.0
    snapshots: tuple[tuple[str, Snapshot], ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", checks.integer("tokens", self.tokens, 1))
        _clean(self)

    def evaluate(self, Z: Array) -> Any:
        """Return the output without noise of one index matrix Z (P, M), in the link's own shape."""
        return self.function("link")(Z)

    def function_values(self, field: str) -> np.ndarray | None:
        return _link_values(self)

    def function_sample(self, field: str) -> np.ndarray | None:
        return _link_sample(self)

    def function_code(self, field: str) -> str | None:
        return _link_code(self)


@dataclass(frozen=True)
class MultiIndex(Specification):
    """Outputs y = g(z) + sqrt(noise) N(0, 1) of P indices z = W x / sqrt(D): one token.

    Parameters
    ----------
    link : callable
        g, any function that JAX can trace, of the vector z (P,), returning a number or an array.
    indices : int
        Number P of indices.
    noise : float
        Variance of the noise on every output.

    Examples
    --------
    >>> MultiIndex(lambda z: z[0] * z[1], indices=2).tokens
    1
    """

    link: Callable[..., Any]
    indices: int
    noise: float = 0.0
    snapshots: tuple[tuple[str, Snapshot], ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        _clean(self)

    @property
    def tokens(self) -> int:
        """Number of tokens per sample: one."""
        return 1

    def evaluate(self, Z: Array) -> Any:
        """Return the output without noise of one index matrix Z (P, 1), in the link's own shape."""
        return self.function("link")(Z[:, 0])

    def function_values(self, field: str) -> np.ndarray | None:
        return _link_values(self)

    def function_sample(self, field: str) -> np.ndarray | None:
        return _link_sample(self)

    def function_code(self, field: str) -> str | None:
        return _link_code(self)


#: Models that the channels of links accept.
LinkModel = SequenceIndex | MultiIndex


def _clean(model: LinkModel) -> None:
    object.__setattr__(model, "indices", checks.integer("indices", model.indices, 1))
    object.__setattr__(model, "noise", float(checks.non_negative("noise", model.noise)))
    P, M = model.indices, model.tokens
    shape = (P, M) if isinstance(model, SequenceIndex) else (P,)
    check_kind(model.link)
    known = snapshot(model.link, shape)
    object.__setattr__(model, "snapshots", (("link", known),))
    try_link(known, P, M, shape)


def _link_values(model: LinkModel) -> np.ndarray:
    """Return values of the link at fixed index matrices, by which a file identifies the link."""
    return condensed(_at(model, fixed_points(16, model.indices, model.tokens)))


def _link_sample(model: LinkModel) -> np.ndarray:
    """Return values of the link at many index matrices, some of them large, as one vector."""
    return condensed(_at(model, far_points(SAMPLE_LENGTH, model.indices, model.tokens)), SAMPLE_LENGTH)


@double_precision()
def _link_code(model: LinkModel) -> str:
    return program_digest(model.evaluate, (model.indices, model.tokens))


@double_precision()
def _at(model: LinkModel, Z: np.ndarray) -> np.ndarray:
    """Return the outputs (n, k) of the link at index matrices Z (n, P, M)."""
    return np.asarray(jax.vmap(lambda z: jnp.ravel(jnp.asarray(model.evaluate(z))))(jnp.asarray(Z)))
