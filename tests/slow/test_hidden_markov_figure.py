"""Accuracy against width on the hidden-Markov task at full size, over eight seeds."""

import numpy as np
import pytest

import asymptotix as asx
from reference_numbers import reference

pytestmark = pytest.mark.slow


def test_accuracy_falls_with_width_to_the_gaussian_process():
    expected = reference("attention_paths")["markov"]["base"]["acc_mean"]
    found, suppressed, denoising = [], [], []
    for seed in range(8):
        data = asx.tasks.hidden_markov(examples=100, seed=seed)
        problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)
        theory = asx.solve(problem, width=[10, 100, 1000, np.inf], progress=False)
        assert theory.ok
        found.append(theory.evaluate(data.test_inputs, data.test_labels).accuracy.values)
        U = theory.order_parameter.sel(width=10).values
        suppressed.append(max(U[1, 1], U[3, 3]))  # the paths through the random head of the second layer
        denoising.append(U[0, 2])
    mean = np.mean(found, axis=0)
    # The same draws as in the reference: one example of 8000 may change sides by rounding.
    np.testing.assert_allclose(mean[:3], [expected[key] for key in ("10", "100", "1000")], atol=2e-4)
    assert abs(mean[3] - 0.848) < 0.002
    assert max(suppressed) < 1
    assert max(denoising) < -1  # anticorrelated with the good path
