"""The channel: what one observation says about the indices.

Given the prior Z ~ N(omega, V) per token and an output y = g(Z), a channel returns log Z_out, the posterior mean and
the posterior covariance of Z in one pass. Everything else follows without differentiating numerically:

    g_out = V^{-1} (E[Z|y] - omega),      d g_out / d omega = V^{-1} Cov[Z|y] V^{-1} - V^{-1} (x) I_M.

Channels work in a token basis of their own choice (an orthonormal rotation of iid Gaussian tokens changes nothing).
"""

from __future__ import annotations

import abc
import contextlib
import copy
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from scipy.special import lambertw, ndtri

from ...core.specification import Specification
from ...numerics.precision import double_precision
from ..models import rank_one
from ..models.deep_attention import DeepAttention
from ..models.link import MultiIndex, SequenceIndex
from .attention.activation_kinds import LINEAR, SOFTMAX


class Posterior(NamedTuple):
    """Posterior of the indices of a batch of n samples (P indices, M tokens).

    Attributes
    ----------
    log_evidence : array (n,)
        log Z_out as a density of the observation (both signs of the pre-activation counted).
    shift : array (n, P, M)
        E[Z|y] - omega.
    covariance : array (n, P, M, P, M)
        Cov[Z|y].
    effective_samples : array (n,) or None
        Kish's effective number of draws, where the posterior comes from weighted draws.
    """

    log_evidence: Any
    shift: Any
    covariance: Any
    effective_samples: Any = None


C = TypeVar("C", bound="Channel")


def score(posterior: Posterior, V: Any) -> Any:
    """g_out (n, P, M) for the prior covariance V (P, P)."""
    xp = rank_one._namespace(posterior.shift)
    return xp.einsum("pq,nqm->npm", xp.linalg.inv(V), posterior.shift)


def score_jacobian(posterior: Posterior, V: Any) -> Any:
    """D g_out[p,m] / d omega[q,k], an array (n, P, M, P, M), symmetric under (p,m) <-> (q,k)."""
    xp = rank_one._namespace(posterior.shift)
    precision = xp.linalg.inv(V)
    tokens = posterior.shift.shape[-1]
    prior = xp.einsum("pq,mk->pmqk", precision, xp.eye(tokens, dtype=precision.dtype))
    return xp.einsum("pr,nrmsk,sq->npmqk", precision, posterior.covariance, precision) - prior


class Channel(abc.ABC):
    """What state evolution and message passing need to know of a model."""

    indices: int
    tokens: int
    #: Number r of independent real outputs: the mean rank of the link's differential (0: discrete or noisy outputs).
    outputs: float
    #: Every index row may change its sign on its own, so that overlaps stay diagonal.
    diagonal: bool = False
    #: The posterior comes from a list of draws that the keyword ``seed`` of :meth:`posterior` chooses. Two seeds are
    #: independent: products of the two are unbiased, squares of one are not.
    stochastic: bool = False
    #: Draws per sample, where there are any.
    draws: int = 0
    #: Number of standard normals of observation noise per sample that :meth:`observe` adds (0: noiseless).
    noises: int = 0
    #: Block of the data on which each row acts, integers (P,): rows of different blocks have no overlap. None: all on
    #: the same.
    groups: np.ndarray | None = None

    @property
    def cost(self) -> int:
        """By how much fewer nodes state evolution takes, a power of two: one posterior may take milliseconds."""
        return 1

    @property
    def overlap_mask(self) -> np.ndarray:
        """Ones (P, P) where an overlap may differ from zero."""
        return np.eye(self.indices) if self.diagonal else self.same_part

    @property
    def same_part(self) -> np.ndarray:
        """Ones (P, P) for rows that act on the same part of the data."""
        groups = np.zeros(self.indices, int) if self.groups is None else np.asarray(self.groups)
        return (groups[:, None] == groups).astype(float)

    @abc.abstractmethod
    def observe(self, Z: Any, noise: Any = None) -> Any:
        """The observation of index matrices Z (n, P, M), in the channel's token basis.

        ``noise`` (n, k) are the standard normals of a noisy channel, by default a hash of Z; others have no use for it.
        """

    def in_single_precision(self) -> Channel:
        """The same channel for message passing, which is in single precision: itself, where that changes nothing."""
        return self

    @abc.abstractmethod
    def posterior(self, observation: Any, omega: Any, V: Any, **accuracy: Any) -> Posterior:
        """Posterior of Z given the observation (n, ...), omega (n, P, M) and V (P, P) or (n, P, P)."""

    @abc.abstractmethod
    def output(self, Z: Any) -> Any:
        """The model's output y (n, ...) whose squared error is reported."""

    def log_output_volume(self, observation: Any) -> Any:
        """Log |dy / d observation|: turns the density of the observation into that of y."""
        return np.zeros(observation.shape[0])

    def draw_indices(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Z ~ N(0, I) as (n, P, M) and importance weights, from uniforms (n, P M) in (0, 1).

        A channel with symmetries folds them here: the integrands of state evolution have them too.
        """
        return ndtri(uniforms).reshape(-1, self.indices, self.tokens), np.ones(len(uniforms))

    def draw_nodes(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Z, the noise of omega ~ N(0, I) of the same shape, and weights, from uniforms (n, 2 P M) in (0, 1).

        The first coordinates of a Sobol sequence are the most even: a channel may give them to what matters
        most.
        """
        size = self.indices * self.tokens
        Z, weights = self.draw_indices(uniforms[:, :size])
        return Z, ndtri(uniforms[:, size:]).reshape(Z.shape), weights


class SignChannel(Channel):
    """One rank-one layer: y fixes z up to its sign (M >= 2 tokens; M >= 1 with linear activation).

    The posterior is two points: E[Z|y] = z tanh(z.omega/V).
    """

    indices = 1
    diagonal = True

    def __init__(self, tokens: int, activation: str) -> None:
        self.tokens, self.outputs, self._activation = tokens, tokens, activation

    def observe(self, Z: Any, noise: Any = None) -> Any:
        return rank_one.canonical_sign(Z[:, 0])

    def output(self, Z: Any) -> Any:
        return rank_one.output(Z, 0.0, self._activation)

    def posterior(self, observation: Any, omega: Any, V: Any, **accuracy: Any) -> Posterior:
        xp = rank_one._namespace(omega)
        z, w = observation, omega[:, 0]
        v = V[..., 0, 0]
        t = (z * w).sum(-1) / v
        mean = z * xp.tanh(t)[:, None]
        covariance = z[:, :, None] * z[:, None, :] * (1 - xp.tanh(t) ** 2)[:, None, None]
        energy = ((z**2).sum(-1) + (w**2).sum(-1)) / (2 * v)
        log_evidence = xp.logaddexp(t, -t) - energy - 0.5 * self.tokens * xp.log(2 * np.pi * v)
        return Posterior(log_evidence, (mean - w)[:, None], covariance[:, None, :, None, :])


class TwoLayerChannel(Channel):
    """Two rank-one layers, two tokens, in the rotated token basis.

    ``backend`` is "numba" (adaptive cubature on the CPU), "jax" (fixed-shape grid, CPU or GPU) or "auto": numba if
    it is installed and JAX has no accelerator.
    """

    indices = tokens = outputs = 2
    diagonal = True

    def __init__(self, skip: float, activation: str, backend: str = "auto", single: bool = False) -> None:
        self.skip, self._activation, self._single = skip, activation, single
        self._kind = LINEAR if activation == "linear" else SOFTMAX
        self.backend = fastest_backend() if backend == "auto" else backend

    def in_single_precision(self) -> TwoLayerChannel:
        """The same channel computing in float32 on the JAX path, so that one compiled program serves a whole run."""
        return TwoLayerChannel(self.skip, self._activation, self.backend, single=True)

    def observe(self, Z: Any, noise: Any = None) -> Any:
        return rank_one.canonical_sign(rank_one.rotated_preactivation(Z, self.skip, self._activation))

    def output(self, Z: Any) -> Any:
        return rank_one.output(Z @ rank_one.ROTATION, self.skip, self._activation)

    def log_output_volume(self, observation: Any) -> Any:
        return rank_one.log_output_volume(observation, self._activation)

    def posterior(self, observation: Any, omega: Any, V: Any, **accuracy: Any) -> Posterior:
        n = omega.shape[0]
        if self.backend == "numba":
            from .attention import quadtree

            omega, V = np.asarray(omega, float), np.asarray(V, float)
            moments = quadtree.posterior_moments(
                self._kind, self.skip, np.asarray(observation, float), omega.reshape(n, 4),
                np.broadcast_to(V, (n, 2, 2)), **accuracy,
            )  # fmt: skip
        else:
            from .attention import fixed_grid

            # Float64 in, float64 out: theory runs in double precision, message passing need not.
            double = np.dtype(omega.dtype) == np.float64 and not self._single
            dtype = np.float64 if double else np.float32
            with double_precision() if double else contextlib.nullcontext():
                observation, omega, V = (_cast(x, dtype) for x in (observation, omega, V))
                moments = fixed_grid.posterior_moments(self._kind, self.skip, observation, omega.reshape(n, 4), V)
        log_evidence, shift, covariance = moments
        return Posterior(log_evidence, shift.reshape(n, 2, 2), covariance.reshape(n, 2, 2, 2, 2))

    def draw_indices(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """z1 in polar coordinates, one quadrant; z2- positive.

        The model is invariant under z1 -> -z1, z2 -> -z2 and the exchange of tokens (both minus parts change
        sign), so one eighth of the space is enough: Sobol points then fill it eight times as densely. The radius
        is drawn with density proportional to (1 + s)/2 exp(-s), s = r^2/2, because what decides is |z1|^4.
        """
        s = -lambertw(-2 * np.exp(-2) * (1 - uniforms[:, 0]), -1).real - 2
        angle = 0.5 * np.pi * uniforms[:, 1]
        radius = np.sqrt(2 * s)
        Z = np.empty((len(uniforms), 2, 2))
        Z[:, 0, 0], Z[:, 0, 1] = radius * np.cos(angle), radius * np.sin(angle)
        Z[:, 1, 0], Z[:, 1, 1] = ndtri(0.5 + 0.5 * uniforms[:, 2]), ndtri(uniforms[:, 3])
        return Z, 2 / (1 + s)

    def draw_nodes(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Coordinates in the order of their share of the variance: z2-, |z1|, angle of z1, then the noise.

        The noise of omega_1 is taken in the frame of z1, for it acts mostly through omega_1 . z1. This order
        and this frame take the error of E|g_1|^2 down by 1.5 to 2.
        """
        Z, weights = self.draw_indices(uniforms[:, [1, 2, 0, 7]])
        along, across, minus, plus = ndtri(uniforms[:, [3, 6, 4, 5]]).T
        cos, sin = (Z[:, 0] / np.linalg.norm(Z[:, 0], axis=1, keepdims=True)).T
        first = np.stack([cos * along - sin * across, sin * along + cos * across], 1)
        return Z, np.stack([first, np.stack([minus, plus], 1)], 1), weights


def _cast(x: Any, dtype: Any) -> Any:
    """Leaves arrays where they are: on the host those of the theory, on the device those of message passing."""
    return x.astype(dtype) if isinstance(x, jax.Array) else np.asarray(x, dtype)


def fastest_backend() -> str:
    """Name "numba" where it is installed and JAX would run on a CPU, else "jax"."""
    if jax.default_backend() != "cpu":
        return "jax"
    try:
        import numba  # noqa: F401
    except ImportError:
        return "jax"
    return "numba"


def with_output(channel: C, output: Callable[[Any], Any]) -> C:
    """The same channel with another output, a function of Z (n, P, M): observations and posteriors stay as they are."""
    changed = copy.copy(channel)
    vars(changed)["output"] = output
    return changed


def channel_of(model: Specification, backend: str = "auto") -> Channel:
    """The channel of a model: the closed form where there is one, else that of a general link.

    ========================================================  ========================================
    deep attention                                            channel
    ========================================================  ========================================
    one layer, tied, rank one, one head                       SignChannel
    one layer, tied, rank two or several heads of rank one;   see :mod:`one_layer_channel`
    untied of rank one
    two layers, two tokens, tied, rank one, one head, a skip  TwoLayerChannel
    other depths and numbers of tokens of the same            DeepChannel
    every other                                               see :mod:`general_channel`
    ========================================================  ========================================

    Parameters
    ----------
    model : DeepAttention, InfiniteDepthAttention, SequenceIndex or MultiIndex
    backend : str
        That of :class:`TwoLayerChannel`.
    """
    if isinstance(model, DeepAttention):
        return _channel_of_attention(model, backend)
    if isinstance(model, SequenceIndex | MultiIndex):
        from .choose import channel_of_link

        return channel_of_link(model)
    from ..models.infinite_depth import InfiniteDepthAttention, infinite_depth_channel

    if isinstance(model, InfiniteDepthAttention):
        return infinite_depth_channel(model)
    accepted = "DeepAttention, InfiniteDepthAttention, SequenceIndex or MultiIndex"
    raise TypeError(f"model must be one of {accepted}, got {model!r}")


def _channel_of_attention(model: DeepAttention, backend: str) -> Channel:
    if model.tokens == 1 and model.activation == "softmax":
        raise ValueError("tokens must be at least 2 with softmax activation: one token attends to itself only, got 1")
    activation = model.activation
    plain = model.tied and model.heads == 1 and set(model.ranks) == {1} and isinstance(activation, str)
    if plain and model.layers == 1:
        # The output sequence of one layer is its attention matrix plus a constant.
        return SignChannel(model.tokens, str(activation))
    # Linear layers without skip connection leave one direction of the tokens: the last one cannot be solved for.
    solvable = model.tokens > 1 and (model.skip > 0 or activation == "softmax")
    if plain and model.output == "attention" and solvable:
        if model.layers == model.tokens == 2 and model.skip > 0:
            return TwoLayerChannel(model.skip, str(activation), backend)
        from .attention.deep import DeepChannel

        return DeepChannel(model.layers, model.tokens, model.skip, str(activation))
    from .attention.one_layer import one_layer_channel
    from .choose import channel_of_attention

    return one_layer_channel(model) or channel_of_attention(model)
