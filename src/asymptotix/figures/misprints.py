"""Quantities as the papers define them, where the definition is a misprint: only figures compare with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..sequence_index.algorithms.data_sets import draw_weights

if TYPE_CHECKING:
    from ..attention_index.spectra.learned import LearnedSpectrum
    from ..core.result import Result


def printed_law(law: LearnedSpectrum) -> LearnedSpectrum:
    """Return the law by eq. (13) of arXiv:2509.24914v1, which lacks the factor 1/scale; outliers are divided too."""
    return replace(law, scale=1.0, outliers=tuple(value / law.scale for value in law.outliers))


def published_cosine(runs: Result) -> xr.DataArray:
    """Return the published cosine (seed, index), |w.w*|/(sqrt(D) |w|), which lacks the norm of the teacher w*.

    ``runs`` are runs of SGD at one alpha and one dimension D.

    Troiani et al., arXiv:2502.00901, section 3.3. The teachers are drawn again from the seeds.
    """
    cosine, dim = runs.ds["cosine"], int(runs.ds["dim"])
    samples, seeds = round(runs.ds["alpha"].item() * dim), runs.ds["seed"].values.tolist()
    teachers = np.asarray(draw_weights(seeds, samples, cosine.sizes["index"], dim, 0.0)[1], float)
    return cosine * xr.DataArray(np.linalg.norm(teachers, axis=-1) / np.sqrt(dim), dims=("seed", "index"))
