"""Sequence multi-index models with a link of the user's own: Troiani et al., arXiv:2502.00901, eq. (1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.specification import Specification, condensed, fixed_points
from ...numerics import checks
from ...numerics.precision import double_precision
from .. import streams


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
        Variance of the noise on every output. 0 is exact: noise is never added to make a computation easier.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", checks.integer("tokens", self.tokens, 1))
        _clean(self)

    def evaluate(self, Z: Any) -> Any:
        """The output without noise, as the link returns it, of one index matrix Z (P, M)."""
        return self.link(Z)

    def function_values(self, field: str) -> np.ndarray | None:
        return _link_values(self)


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

    def __post_init__(self) -> None:
        _clean(self)

    @property
    def tokens(self) -> int:
        """One token per sample."""
        return 1

    def evaluate(self, Z: Any) -> Any:
        """The output without noise, as the link returns it, of one index matrix Z (P, 1)."""
        return self.link(Z[:, 0])

    def function_values(self, field: str) -> np.ndarray | None:
        return _link_values(self)


#: What the channels of links take.
LinkModel = SequenceIndex | MultiIndex


def _clean(model: LinkModel) -> None:
    object.__setattr__(model, "indices", checks.integer("indices", model.indices, 1))
    noise = float(checks.non_negative("noise", model.noise))
    if noise == float("inf"):
        raise ValueError("noise must be a finite variance, got inf")
    object.__setattr__(model, "noise", noise)
    if not callable(model.link):
        raise TypeError(f"link must be a function of the indices, got {model.link!r}")
    _try_link(model)


def _link_values(model: LinkModel) -> np.ndarray:
    """The link at fixed index matrices: what a file knows it by."""
    with double_precision():
        Z = jnp.asarray(fixed_points(16, model.indices, model.tokens))
        return condensed(jax.vmap(lambda z: jnp.ravel(jnp.asarray(model.evaluate(z))))(Z))


def _try_link(model: LinkModel) -> None:
    """Trace the link, and evaluate it at a few index matrices."""
    shape = f"({model.indices}, {model.tokens})" if isinstance(model, SequenceIndex) else f"({model.indices},)"
    Z = np.random.default_rng(streams.LINK_TRIAL).standard_normal((16, model.indices, model.tokens))

    def flat(z: Any) -> Any:
        return jnp.ravel(jnp.asarray(model.evaluate(z)))

    with double_precision():
        try:
            y = np.asarray(jax.vmap(flat)(jnp.asarray(Z)))
        except Exception as error:
            raise ValueError(
                f"link must be a function that JAX can trace, of an array of shape {shape}, returning a number or an "
                f"array; got {model.link!r}, which raised {type(error).__name__}: {error}"
            ) from error
    if y.shape[1] == 0:
        raise ValueError(f"link must return at least one number, got {model.link!r}, which returns none")
    if np.iscomplexobj(y) or not np.isfinite(np.asarray(y, float)).all():
        raise ValueError(f"link must return finite real numbers, got {model.link!r}, which returns {y.ravel()[:4]}")
