"""Error of a prediction at given order parameters, with its numerical error.

Boncoraglio et al., arXiv:2509.24914, eq. (12).
"""

from __future__ import annotations

import numpy as np

from ..loss.loss_average import SquaredSoftmax
from ..model import AttentionIndex
from ..streams import NODE_SCRAMBLINGS

_TINY_RESPONSE = 1e-9  # the proximal point is then the field itself, at no cost
_ORDERS = (28, 22)
_COUNT = 2**13


def prediction_error(model: AttentionIndex, m: float, q: float, *, beta: float) -> tuple[float, float]:
    """E|sigma(target_beta z_0) - sigma(beta z)|^2 for cov(z_0, z) = m, var z = q per direction, and its error."""
    if model.activation == "linear":
        return 2 * model.visible_directions * (model.noisy_signal - 2 * m + q), 0.0
    if model.tokens == 2:
        rules = [SquaredSoftmax(2, beta, model.teacher_beta, order=order) for order in _ORDERS]
    else:
        rules = [
            SquaredSoftmax(model.tokens, beta, model.teacher_beta, count=_COUNT, seed=seed) for seed in NODE_SCRAMBLINGS
        ]
    found = np.array([rule(model.noisy_signal, m, q, _TINY_RESPONSE, multi_start=False).test for rule in rules])
    if model.tokens == 2:
        return float(found[0]), float(abs(found[1] - found[0]))
    return float(found.mean()), float(found.std(ddof=1) / np.sqrt(len(found)))
