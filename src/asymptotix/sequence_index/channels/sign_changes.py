"""Whether every index of a channel may change its sign unseen, as ``diagonal = True`` says.

State evolution then takes overlaps to be diagonal, and zero overlap to be a fixed point. Where it is not true that is
an error without a symptom: below a threshold that does not exist, "nothing is learned".
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from ...numerics.quadrature import sobol_uniforms
from .. import streams
from .protocol import Channel

#: Outputs at which the channel is asked.
_OUTPUTS = 32
#: Overlap at which it is asked, where the sign of what is known matters as much as what is not known.
_OVERLAP = 0.5
#: Mean change of the log density of an output that is seen. Cubature leaves 1e-3, a sign that is seen changes it by
#: one or so.
_SEEN = 0.05


def refuse_seen_signs(channel: Channel) -> None:
    """ValueError where a channel says that it is diagonal and the sign of an index changes what it makes of an output.

    It costs a few posteriors per index. Those from draws scatter too much to be asked.
    """
    if not channel.diagonal or channel.stochastic:
        return
    P, M = channel.indices, channel.tokens
    normals = ndtri(sobol_uniforms(_OUTPUTS, 2 * P * M + channel.noises, streams.SIGN_CHANGES))
    known, rest = (normals[:, k * P * M : (k + 1) * P * M].reshape(-1, P, M) for k in range(2))
    omega, V = np.sqrt(_OVERLAP) * known, (1 - _OVERLAP) * np.eye(P)
    observation = channel.observe(omega + np.sqrt(1 - _OVERLAP) * rest, normals[:, 2 * P * M :])
    densities = np.asarray(channel.posterior(observation, omega, V).log_evidence, float)
    for index in range(P):
        sign = np.where(np.arange(P) == index, -1.0, 1.0)[:, None]
        changed = np.asarray(channel.posterior(observation, sign * omega, V).log_evidence, float)
        difference = np.nanmean(abs(changed - densities))
        if difference > _SEEN:
            raise ValueError(
                f"diagonal of {type(channel).__name__} must be True only where every index may change its sign unseen, "
                f"got True, but the sign of index {index + 1} changes the log density of an output by {difference:.2g} "
                "on average: set diagonal = False, which follows overlaps as matrices, or correct the posterior"
            )
