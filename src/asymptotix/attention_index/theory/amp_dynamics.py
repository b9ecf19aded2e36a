"""State evolution as the dynamics of matrix message passing, iteration by iteration from S = 0.

Boncoraglio et al., arXiv:2509.24914, eq. (43) as it is written, with an index t. The first iteration has no data behind
it: its response is a choice that message passing and this theory share.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .state_evolution import OrderParameters, TrainingEvolution

#: V of regularised training before any data: large enough that the first proximal points are close to the target's.
FIRST_RESPONSE = 20.0


def message_passing_trace(evolution: TrainingEvolution, alpha: float, iterations: int) -> Mapping[str, np.ndarray]:
    """m, q, V = Sigma and Lambda = Sigmahat after 1, 2, ... iterations."""
    m, q, Sigma = 0.0, 0.0, FIRST_RESPONSE
    rows = []
    for _ in range(iterations):
        averages = evolution.loss(evolution.noisy_signal, m, q, Sigma, multi_start=True)
        fields = evolution.fields(alpha, OrderParameters(m, q, Sigma), averages)
        estimate = evolution.penalty.estimate(evolution.target, *fields)
        m, q, Sigma = estimate.m, estimate.q, estimate.Sigma
        rows.append((m, q, Sigma, fields.Sigmahat))
    return dict(zip(("m", "q", "V", "Lambda"), np.array(rows).T, strict=True))
