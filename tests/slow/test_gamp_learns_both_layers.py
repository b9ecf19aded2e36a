"""Message passing in stages learns both layers without side information."""

import numpy as np
import pytest

from asymptotix import GAMP, BayesOptimal, DeepAttention, simulate

pytestmark = pytest.mark.slow


def test_stages_learn_layer_1():
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2))
    runs = simulate(problem, GAMP(iterations=40), alpha=1.2, dim=500, seeds=3, progress=False)
    found = runs.overlap.values.reshape(3, 2, 2)[:, 0, 0]
    assert (found > 0.9).all(), found  # not learned would be of order 1/D


def test_a_run_that_contradicts_the_prescribed_variances_goes_on_with_its_own(monkeypatch):
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2))

    def run() -> tuple[float, str, np.ndarray]:
        runs = simulate(problem, GAMP(iterations=40), alpha=1.2, dim=400, seeds=[2], progress=False)
        variance = runs.variance_trace.values.reshape(-1, 2)
        return runs.overlap.values.reshape(2, 2)[0, 0], str(runs.status.values.ravel()[0]), variance

    found, status, own = run()
    assert found > 0.9
    assert "measured variances were used" in status
    monkeypatch.setattr("asymptotix.sequence_index.algorithms.gamp_batch._LAG", 1e9)
    _, status, prescribed = run()
    assert "measured variances" not in status
    differ = np.any(abs(own / prescribed - 1) > 1e-6, axis=1)
    assert differ.any()
    assert not differ[0]
