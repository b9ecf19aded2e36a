"""The map of the phases of scaling laws, tiny."""

import numpy as np
import pytest

from asymptotix.figures import FIGURES
from asymptotix.figures.atlas.scaling_phases import NOISE, _Borders


@pytest.mark.slow
def test_the_map_is_drawn_and_says_what_is_measured():
    made = FIGURES["atlas/scaling"]("quick", dim=50, alphas=5, decays=4, softmax=5, progress=False)
    assert len(made.figure.axes) == 5  # four maps and the bar of colours
    assert sum("phase II, along the solid line" in line for line in made.findings.remarks) == 4
    assert set(made.results) == {"linear_0.75", "linear_1", "linear_1.5", "softmax"}


def test_borders_are_those_of_the_page():
    """I above sqrt(8 Delta a), V below it and beyond a = 1/2, 0 where lt/(2 a) exceeds the largest eigenvalue."""
    borders = _Borders(1.0, 10**6)
    a, decay = np.array([1e-2, 10.0, 1e-2]), np.array([5.0, 1e-2, 1e4])
    phases = borders.phases(a, decay)
    found = [[name for name, (_, inside) in phases.items() if inside[k]] for k in range(3)]
    assert found == [["I"], ["V"], ["0"]]
    assert borders.edge(np.array(1.0)) == np.sqrt(8 * NOISE)
