"""The pre-activation that an attention matrix comes from: what the output tells of the indices."""

import numpy as np

from asymptotix.sequence_index.models.rank_one import ROTATION


def preactivation_from_output(y: np.ndarray, activation: str) -> np.ndarray:
    """The last pre-activation of two tokens in the rotated basis, up to its sign, from the output y (..., 2, 2).

    Softmax: Troiani et al., arXiv:2502.00901, eq. (161). An output that has rounded to 0 or 1 has lost the information:
    the entries must be inside (0, 1).
    """
    if activation == "linear":
        rotated = ROTATION @ y @ ROTATION.T
        first = np.sqrt(rotated[..., 0, 0])
        return np.stack([first, rotated[..., 0, 1] / first], -1)
    l1 = np.log(1 / y[..., 0, 1] - 1)
    l2 = np.log(1 / y[..., 1, 0] - 1)
    return np.stack([np.sqrt((l1 + l2) / 2), (l1 - l2) / np.sqrt(2 * (l1 + l2))], -1)
