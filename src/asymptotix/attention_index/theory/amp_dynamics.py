"""State evolution as the dynamics of matrix message passing, iteration by iteration from S = 0.

Boncoraglio et al., arXiv:2509.24914, eq. (43) with its iteration index t. No data determine the response of the first
iteration: it is a chosen constant, the same in message passing and in this theory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .state_evolution import TrainingEvolution
from .training_states import OrderParameters

#: Initial response V of regularised training: so large that the first proximal points are close to the target's.
FIRST_RESPONSE = 20.0


def message_passing_trace(evolution: TrainingEvolution, alpha: float, iterations: int) -> Mapping[str, np.ndarray]:
    """Return arrays (iterations,) by name: m, q, V = Sigma and Lambda = Sigmahat after 1, 2, ... iterations."""
    m, q, Sigma = 0.0, 0.0, FIRST_RESPONSE
    rows = []
    for _ in range(iterations):
        averages = evolution.loss(evolution.noisy_signal, m, q, Sigma, multi_start=True)
        fields = evolution.fields(alpha, OrderParameters(m, q, Sigma), averages)
        estimate = evolution.penalty.estimate(evolution.target, *fields)
        m, q, Sigma = estimate.m, estimate.q, estimate.Sigma
        rows.append((m, q, Sigma, fields.Sigmahat))
    return dict(zip(("m", "q", "V", "Lambda"), np.array(rows).T, strict=True))
