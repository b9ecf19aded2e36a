"""Check of ``diagonal = True``: that outputs do not depend on the sign of any index of the channel.

State evolution of such a channel assumes that overlaps are diagonal and that zero overlap is a fixed point. If the
claim is false, the error has no symptom: state evolution reports a threshold that does not exist, with nothing learned
below it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from ...numerics.quadrature import sobol_uniforms
from .. import streams
from .protocol import Channel

#: Number of outputs at which the signs are checked.
_OUTPUTS = 32
#: Overlap of the check: at 1/2 the sign of the known part of an index matters as much as the unknown part.
_OVERLAP = 0.5
#: Mean change of an output's log density above which the output depends on the sign. Errors of cubature change it by
#: 1e-3, a visible sign by about one.
_SEEN = 0.05


def refuse_seen_signs(channel: Channel) -> None:
    """Raise ValueError if a channel has ``diagonal = True`` but its log Z_out depends on the sign of an index.

    The check costs a few posteriors per index. Channels with draws are not checked: their posteriors scatter too much.
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
