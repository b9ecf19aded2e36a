"""Gaussians around the modes of exp(-|x|^2/2 - |f(x)|^2/2), as a proposal for draws.

Gauss-Newton steps lead from given points to modes m_k. The precision at a mode is H_k = I + f'^T f' = C_k C_k^T, and

    q(x) = mean_k N(x; m_k, (wider^2 H_k^{-1})).

Where f is nearly linear, q approximates the density itself; elsewhere q must be mixed with a broad proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from .small_matrices import cholesky, solve_positive

#: Factor by which the Gaussians are wider than the quadratic approximation.
WIDER = 1.2
#: Largest length of a Gauss-Newton step.
_LONGEST = 1.5


class Mixture(NamedTuple):
    """Centres (K, d) and Cholesky factors (K, d, d) of the precisions, which include the widening."""

    centres: jax.Array
    factors: jax.Array

    def draw(self, normals: list[jax.Array]) -> list[jax.Array]:
        """Return draws as a list of d arrays, from d arrays of standard normals; draw i is of component i mod K."""
        d, parts = len(normals), len(self.centres)
        part = np.arange(len(normals[0])) % parts
        C, m = self.factors[part], self.centres[part]
        x: list[Any] = [None] * d
        for i in reversed(range(d)):  # C^T x = normals
            x[i] = (normals[i] - sum((C[:, j, i] * x[j] for j in range(i + 1, d)), 0.0)) / C[:, i, i]
        return [x[i] + m[:, i] for i in range(d)]

    def log_ratio(self, x: list[jax.Array]) -> jax.Array:
        """Return log q(x) - log N(x; 0, I) of points x, a list of d arrays of coordinates; q is this mixture."""
        d, C = len(x), self.factors[..., None]
        away = [x[i] - self.centres[:, i, None] for i in range(d)]
        square = sum((sum((C[:, j, i] * away[j] for j in range(i, d)), 0.0) ** 2 for i in range(d)), 0.0)
        volume = jnp.log(jnp.diagonal(self.factors, axis1=1, axis2=2)).sum(1)
        parts = logsumexp(volume[:, None] - 0.5 * square, axis=0) - math.log(len(C))
        return parts + 0.5 * sum((entry * entry for entry in x), 0.0)


def log_sum(terms: list[jax.Array]) -> jax.Array:
    """Return the log of the sum of exponentials of a list of arrays."""
    top = terms[0]
    for term in terms[1:]:
        top = jnp.maximum(top, term)
    return top + jnp.log(sum((jnp.exp(term - top) for term in terms), 0.0))


def modes(
    residual: Callable[[jax.Array, jax.Array], jax.Array], points: jax.Array, choices: jax.Array, steps: int
) -> Mixture:
    """Return the mixture around the modes that are reached from points (K, d).

    Parameters
    ----------
    residual : callable
        f, a function of a point (d,) and its choice that returns an array (k,).
    choices : array (K,)
        Second argument of f, one per point.
    steps : int
        Number of damped Gauss-Newton steps.
    """

    def normal_equations(x: jax.Array, choice: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        value = residual(x, choice)
        J = jax.jacfwd(residual)(x, choice)
        return jnp.eye(len(x), dtype=x.dtype) + J.T @ J, x + J.T @ value, 0.5 * (x @ x + value @ value)

    def one(x: jax.Array, choice: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(
            state: tuple[jax.Array, jax.Array, tuple[jax.Array, ...]], _: object
        ) -> tuple[tuple[jax.Array, jax.Array, tuple[jax.Array, ...]], None]:
            x, damping, here = state
            H, gradient, energy = here
            move = -solve_positive(H + damping * jnp.diag(jnp.diagonal(H)), gradient)
            move = move * jnp.minimum(1.0, _LONGEST / (jnp.sqrt(move @ move) + 1e-12))
            there = normal_equations(x + move, choice)
            better = there[2] < energy
            here = tuple(jnp.where(better, new, old) for new, old in zip(there, here, strict=True))
            damping = jnp.where(better, 0.1 * damping, jnp.maximum(10 * damping, 0.3))
            return (jnp.where(better, x + move, x), damping, here), None

        start = (x, jnp.asarray(1e-3, x.dtype), normal_equations(x, choice))
        (x, _, (H, _, _)), _ = jax.lax.scan(step, start, None, length=steps)
        return x, cholesky(H) / WIDER

    return Mixture(*jax.vmap(one)(points, choices))
