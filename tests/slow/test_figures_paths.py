"""Figures of attention paths at a small size: sampling compiles for half a minute."""

from __future__ import annotations

import numpy as np
import pytest

from asymptotix.figures import paths

pytestmark = pytest.mark.slow


def test_narrow_networks_choose_their_paths():
    made = paths.fig2(tasks=2, test_examples=200, sampled=[10], draws=60, progress=False)
    numbers = made.datasets["four_paths_0"]
    claims = {claim.what: claim for claim in made.findings.claims}
    gain = claims["width 10 beats the Gaussian-process limit (%)"]
    tasks = [made.datasets[f"four_paths_{seed}"] for seed in range(2)]
    narrow, limit = (100 * np.mean([float(t.accuracy.sel(width=w)) for t in tasks]) for w in (10, np.inf))
    assert gain.found.startswith(f"{narrow:.1f} against {limit:.1f}: +")
    # Measured on many draws: 95 and 84, each with an error of 2 at 200 chains and two tasks.
    assert narrow > limit + 4
    np.testing.assert_allclose(limit, 100 * np.mean([float(t.limit_accuracy[0]) for t in tasks]), atol=1e-9)
    weights = numbers.order_parameter.sel(width=10).values
    assert weights[0, 0] > 5 > 1 > weights[1, 1]
    assert weights[0, 2] < -2
    assert len(made.findings.agreements) == 3
    assert made.findings.agreements[0].points <= 1
    assert len(made.figure.axes) == 6
