"""Quantities that figures compare with as printed."""

from pathlib import Path

import numpy as np

import asymptotix as asx
from asymptotix.attention_index.spectra.learned import LearnedSpectrum
from asymptotix.figures.misprints import printed_law, published_cosine

OLD = Path(__file__).parents[1] / "fixtures" / "saved_by_0_1" / "sgd.nc"


def test_published_cosine_is_that_of_an_old_file() -> None:
    """Version 0.1 kept it in the results. The teachers that are drawn again are those of the runs."""
    runs = asx.load(OLD)
    found = published_cosine(runs).transpose(*runs.ds["published_cosine"].dims)
    np.testing.assert_allclose(found, runs.ds["published_cosine"], rtol=1e-6)  # runs are in single precision


def test_printed_law_lacks_the_scale() -> None:
    law = LearnedSpectrum(asx.MarchenkoPastur(0.5).convolution(0.6), 0.8, 0.1, outliers=(1.6,))
    s = np.linspace(0.1, 1.0, 5)
    printed = printed_law(law).eigenvalue_density(s)
    np.testing.assert_allclose(printed, law.scale * law.eigenvalue_density(law.scale * s))
    np.testing.assert_allclose(printed_law(law).outliers, [2.0])
