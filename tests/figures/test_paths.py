"""Kernels of single paths."""

from __future__ import annotations

import numpy as np

from asymptotix.figures import paths


def test_a_path_alone_has_the_kernel_of_the_network_without_the_others():
    kernels = paths._kernels()
    parts = [kernels[name].values for name in paths.PATHS]
    # In the limit all paths weigh the same, and a network has their mean: the prefactor is one over their number.
    np.testing.assert_allclose(kernels["all paths, limit"], np.mean(parts, axis=0), atol=1e-10)
