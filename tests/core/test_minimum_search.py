"""The search for a minimum, on functions whose minimum, noise and failures are known."""

import numpy as np
import pytest

from asymptotix.core.optima.minimum_search import Look, MinimumSearch
from asymptotix.core.status import Status


def search(value, slope, *, error=(0.0, 0.0), seen=None, status=lambda x: Status.CONVERGED):
    def look(at: float, fine: bool) -> Look:
        if seen is not None:
            seen.append((at, fine))
        shift = error[fine]  # a slope that is wrong by its error
        return Look(at, value(at), slope(at) + shift, 0.0, shift, status(at), "" if status(at).converged else "stuck")

    return MinimumSearch(look, lambda at: f"{at:g}")


def square(x):
    return (x - 0.3) ** 2


def square_slope(x):
    return 2 * (x - 0.3)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
def test_the_error_covers(tolerance):
    def value(x):
        return np.cosh(x - 0.3) + 0.1 * x

    found = search(value, lambda x: np.sinh(x - 0.3) + 0.1).between(-4.0, 5.0, tolerance)
    assert found.inside
    assert found.status is Status.CONVERGED
    assert abs(found.here.at - (0.3 - np.arcsinh(0.1))) <= found.error <= tolerance


def test_coarse_slopes_are_refined_where_they_leave_the_place_open():
    seen: list[tuple[float, bool]] = []
    found = search(square, square_slope, error=(0.02, 2e-5), seen=seen).between(-4.0, 5.0, 1e-3)
    assert found.status is Status.CONVERGED
    assert abs(found.here.at - 0.3) <= found.error <= 1e-3
    assert 1 <= sum(fine for _, fine in seen) <= 4


def test_what_is_not_reached_is_said():
    found = search(square, square_slope, error=(0.2, 0.2)).between(-4.0, 5.0, 1e-3)
    assert found.status is Status.INACCURATE
    assert abs(found.here.at - 0.3) <= found.error
    assert "beyond the tolerance of 0.10%" in found.words


def test_a_flat_bound_does_not_end_the_search():
    """Falling, rising, then flat: as a test error is where the decay leaves nothing of S."""

    def value(x):
        return min(square(x), square(1.0))

    def slope(x):
        return square_slope(x) if x < 1.0 else 0.0

    for low, high in ((-4.0, 5.0), (-1.0, 30.0)):
        found = search(value, slope).between(low, high, 1e-3)
        assert found.inside
        assert found.here.at == pytest.approx(0.3, abs=1e-3)


def test_the_better_bound_where_there_is_no_minimum():
    found = search(square, square_slope).between(1.0, 2.0, 1e-3)
    assert (found.here.at, found.inside, found.status) == (1.0, False, Status.AT_BOUND)
    assert "lower bound 1 is" in found.words
    found = search(lambda x: max(-x, -1.0), lambda x: -1.0 if x < 1 else 0.0).between(0.0, 4.0, 1e-3)
    assert not found.inside
    assert found.status is Status.AT_BOUND


def test_downhill_from_a_start():
    for start in (-3.0, 0.0, 4.0):
        found = search(square, square_slope).downhill(start, 1.0, -30.0, 1e-4)
        assert found is not None
        assert found.here.at == pytest.approx(0.3, abs=1e-4)
    assert search(np.exp, np.exp).downhill(0.0, 1.0, -20.0, 1e-4) is None


def test_a_doubtful_point_counts_where_it_could_be_the_minimum():
    doubt = {True: Status.NOT_VALID, False: Status.CONVERGED}
    near = search(square, square_slope, status=lambda x: doubt[abs(x - 0.3) < 0.1]).between(-4.0, 5.0, 1e-3)
    assert (near.status, near.words) == (Status.NOT_VALID, "stuck")
    far = search(square, square_slope, status=lambda x: doubt[x < -3.0]).between(-4.0, 5.0, 1e-3)
    assert far.status is Status.CONVERGED
