import pytest

from asymptotix import BayesOptimal, DeepAttention, Result, solve

LOOSE = 2e-2  # tolerance that needs the fewest nodes: about 3e-4 in the overlap away from the thresholds


@pytest.fixture(scope="session")
def two_layers() -> BayesOptimal:
    return BayesOptimal(DeepAttention(layers=2, tokens=2))


@pytest.fixture(scope="session")
def curve(two_layers) -> Result:
    """Below the first threshold, and between the first and the second."""
    return solve(two_layers, alpha=[0.1, 0.6], tolerance=LOOSE, progress=False)


@pytest.fixture(scope="session")
def with_side_information() -> Result:
    problem = BayesOptimal(DeepAttention(layers=2, tokens=2), side_information=0.3)
    return solve(problem, alpha=0.6, tolerance=LOOSE, progress=False)
