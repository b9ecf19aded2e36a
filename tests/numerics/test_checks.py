import jax
import numpy as np
import pytest

from asymptotix.numerics import checks


def test_message_names_argument_value_and_what_is_accepted():
    with pytest.raises(ValueError, match=r"^alpha must be positive, got -0\.3$"):
        checks.positive("alpha", -0.3)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.positive, [1, 0.5, np.float64(2), np.array(3.0)], [0, -1.0, np.inf, 10**400]),
        (checks.non_negative, [0, 0.0, 2], [-1e-300]),
        (lambda name, x: checks.at_least(name, x, 2), [2, 2.5], [1.999]),
        (checks.probability, [0, 0.5], [1, 1.0, -0.1]),
        (lambda name, x: checks.probability(name, x, closed=True), [0, 1], [1.0001]),
        (lambda name, x: checks.integer(name, x, minimum=1), [1, 2.0, np.int32(3)], [0, 1.5, np.inf]),
    ],
)
def test_number_checks(check, good, bad):
    for value in good:
        assert check("x", value) == value
    for value in bad:
        with pytest.raises(ValueError, match=r"^x must be"):
            check("x", value)
    with pytest.raises(ValueError, match="nan"):
        check("x", float("nan"))
    for value in (True, np.True_, "1", None, [1.0], 1j):
        with pytest.raises(TypeError, match=r"^x must be"):
            check("x", value)


def test_integer_returns_an_int():
    assert type(checks.integer("n", 3.0)) is int


def test_one_of_does_not_take_true_for_one():
    assert checks.one_of("rule", "both", ["both", "either"]) == "both"
    with pytest.raises(ValueError, match="rule must be one of 'both', 'either', got 'all'"):
        checks.one_of("rule", "all", ["both", "either"])
    with pytest.raises(ValueError, match="must be one of"):
        checks.one_of("rank", True, [1, 2])


def test_finite_grid():
    grid = checks.finite_grid("alpha", [1, 2])
    assert grid.dtype == float
    assert grid.shape == (2,)
    assert checks.finite_grid("alpha", 3).tolist() == [3.0]
    for bad in ([], [[1.0]], [1.0, np.inf], [1.0, np.nan], [[1], [1, 2]]):
        with pytest.raises(ValueError, match="alpha"):
            checks.finite_grid("alpha", bad)
    for bad in ([True, False], ["a"], None):
        with pytest.raises(TypeError, match="alpha"):
            checks.finite_grid("alpha", bad)


def test_array_of_shape():
    assert checks.array_of_shape("Q", np.eye(2), (2, 2)).shape == (2, 2)
    assert checks.array_of_shape("x", np.ones((5, 3)), (None, 3)).shape == (5, 3)
    with pytest.raises(ValueError, match=r"Q must have shape \(2, any\), got \(3, 3\)"):
        checks.array_of_shape("Q", np.eye(3), (2, None))
    with pytest.raises(ValueError, match="finite"):
        checks.array_of_shape("Q", [[np.inf]], (1, 1))


@pytest.mark.parametrize(("transformed", "given"), [(jax.jit, 1.0), (jax.grad, 1.0), (jax.vmap, np.ones(2))])
def test_a_symbol_of_jax_is_answered_with_what_to_do(transformed, given):
    with pytest.raises(ValueError, match=r"alpha must be an array of numbers, got .*outside of jax\.jit"):
        transformed(lambda alpha: checks.real_array("alpha", alpha).sum())(given)
