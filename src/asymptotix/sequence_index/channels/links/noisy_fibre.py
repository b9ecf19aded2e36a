"""Links with Gaussian noise on their outputs, more than two indices: weighted draws on a fibre."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...models.link import LinkModel
from .fibre import CHARTS, FibreChannel
from .link_kind import LinkKind


class NoisyFibreChannel(FibreChannel):
    """The noise is an unknown too: y = g(z) + sqrt(noise) e is a link without noise of the n + k unknowns (z, e).

    The charts then decide, sample by sample, whether the draws come from the prior (e is solved, the weight is the
    likelihood) or from the neighbourhood of the solutions of g(z) = y (z is solved, e is drawn).
    """

    def __init__(self, model: LinkModel, kind: LinkKind) -> None:
        # In its noise the observation is affine.
        super().__init__(model, kind.outputs, (*kind.affine, *[True] * kind.outputs))
        self.outputs, self.noises = 0.0, kind.outputs
        self.dimension = self.size + kind.outputs
        self.description = (
            f"weighted draws on the fibre of the output in the space of indices and noise, {CHARTS} charts that each"
            f" solve {self.solved} of {self.dimension} coordinates"
        )

    def whitened(self, omega: Any, root: Any) -> Any:
        size, amplitude = self.size, float(np.sqrt(self.model.noise))
        return lambda x: self.link(omega + root @ x[:size]) + amplitude * x[size:]
