"""Posteriors of links by brute force, and draws from the model at a given overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CORRELATED = np.array([[0.6, 0.2], [0.2, 0.3]])
TWO_INDEX_PRIORS = [0.7 * np.eye(2), 0.1 * np.eye(2), 0.01 * np.eye(2), CORRELATED, 0.02 * CORRELATED]


def draw(channel: Any, V: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Z, omega and the observation at overlap I - V: omega ~ N(0, I - V), Z | omega ~ N(omega, V)."""
    rng = np.random.default_rng(seed)
    shape = (count, channel.indices, channel.tokens)
    omega = np.linalg.cholesky(np.eye(len(V)) - V) @ rng.standard_normal(shape)
    Z = omega + np.linalg.cholesky(V) @ rng.standard_normal(shape)
    return Z, omega, channel.observe(Z)


def outputs_of(channel: Any, Z: np.ndarray, observation: np.ndarray) -> np.ndarray:
    """The outputs of the model itself (n, k) that are seen as the observation in units of the channel's own."""
    outputs = channel.model_output(Z)
    if not channel.noises:
        return outputs
    unit = np.sqrt(channel.model.own.noise / channel.model.noise)
    return outputs + unit * (observation - channel.observe(Z, np.zeros((len(Z), channel.noises))))


def in_own_units(channel: Any, found: Any, observation: np.ndarray) -> Any:
    """A posterior with the density of the model's own output, as those by brute force have it."""
    return found._replace(log_evidence=found.log_evidence - channel.log_output_volume(observation))


def moments_of(log_weights: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Log of the total weight, mean and covariance of weighted points x (m, n)."""
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    total = weights.sum()
    mean = weights @ x / total
    centred = x - mean
    return top + np.log(total), mean, (centred * weights[:, None]).T @ centred / total


def log_normal(shift: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Log-density of N(0, V) at the rows of ``shift``."""
    energy = np.einsum("ni,ij,nj->n", shift, np.linalg.inv(V), shift, optimize=True)
    return -0.5 * energy - 0.5 * np.linalg.slogdet(2 * np.pi * V)[1]


def on_grid(
    log_likelihood: Callable[[np.ndarray], np.ndarray], omega: np.ndarray, V: np.ndarray, points: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Dense midpoint rule over the whitened indices, within 9 standard deviations."""
    n = len(omega)
    axis = (np.arange(points) + 0.5) * 18 / points - 9
    x = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), -1).reshape(-1, n) @ np.linalg.cholesky(V).T
    log_cell = n * np.log(18 / points) + 0.5 * np.linalg.slogdet(V)[1]
    return moments_of(log_normal(x, V) + log_likelihood(omega + x) + log_cell, x)


def worst_error(found: Any, expected: Sequence[tuple[Any, np.ndarray, np.ndarray]], V: np.ndarray) -> np.ndarray:
    """Largest errors of log-evidence, mean and covariance, in units of the prior's standard deviations."""
    scale = np.sqrt(np.diag(V)).repeat(found.shift.shape[2])
    n = len(scale)
    errors = []
    for i, (log_evidence, mean, covariance) in enumerate(expected):
        errors.append(
            [
                abs(found.log_evidence[i] - log_evidence),
                (abs(found.shift[i].ravel() - mean) / scale).max(),
                (abs(found.covariance[i].reshape(n, n) - covariance) / np.outer(scale, scale)).max(),
            ]
        )
    return np.max(errors, axis=0)
