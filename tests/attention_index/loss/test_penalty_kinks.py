"""Where a penalty of the user's own is not smooth."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.attention_index.loss.own_functions import penalty_functions


@pytest.mark.parametrize(
    "smooth",
    [lambda t: t, lambda t: t**2, lambda t: jnp.log(jnp.cosh(t)), lambda t: jnp.where(t > 0.3, t**2, t * t)],
)
def test_smooth_penalties_have_none(smooth):
    # cosh overflows at 710, and its square, of which a curvature is made, at half of that
    assert [t for t, *_ in penalty_functions(smooth).kinks if abs(t) < 100] == []


@pytest.mark.parametrize("place", [1e-6, 0.7, 1.03, 1e5])
def test_jumps_of_slope_and_curvature_are_found(place):
    ((t, before, after),) = penalty_functions(lambda t: jnp.maximum(t, 3 * t - 2 * place)).kinks
    assert (before, after) == (1.0, 3.0)
    assert t == pytest.approx(place, rel=1e-14)
    left, right = penalty_functions(lambda t: jnp.where(abs(t) < place, t**2, 2 * place * abs(t) - place**2)).kinks
    assert (left[0], right[0]) == pytest.approx((-place, place), rel=1e-14)
    assert right[1] == right[2] == pytest.approx(2 * place, rel=1e-14)


def test_zero_is_zero():
    ((t, before, after),) = penalty_functions(lambda t: jnp.where(t > 0, t, -1e6 * t)).kinks
    assert (t, before, after) == (0.0, -1e6, 1.0)
    assert np.isfinite(penalty_functions(lambda t: abs(t) ** 1.5).slope(np.zeros(1))).all()
