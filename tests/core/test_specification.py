import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asymptotix.core.describing.fingerprints import condensed, fixed_points
from asymptotix.core.specification import (
    Specification,
    build,
    describe,
    differences,
    differing,
    numeric_fields,
    value_at,
    with_fields,
)
from toy import ToyLearning, ToyRegression


@dataclass(frozen=True)
class Inner(Specification):
    rank: int | tuple[int, ...] = 1
    scale: float = 1.0
    beta: float | None = None
    tied: bool = True
    name: str = "softmax"


@dataclass(frozen=True)
class Outer(Specification):
    inner: Inner = field(default_factory=Inner)
    parts: tuple[Inner, ...] = ()
    matrix: np.ndarray | None = None
    link: Callable | None = None
    width: float = 2.0


@dataclass(frozen=True)
class Several(Specification):
    arrays: tuple[np.ndarray, ...] | None = None


@dataclass(frozen=True)
class Ambiguous(Specification):
    inner: Inner = field(default_factory=Inner)
    scale: float = 3.0


def through_json(obj):
    return build(json.loads(json.dumps(describe(obj))))


def test_round_trip_keeps_types():
    obj = Outer(inner=Inner(rank=(1, 2), beta=0.5, tied=False), parts=(Inner(), Inner(scale=np.float64(2))))
    again = through_json(obj)
    assert again == obj
    assert isinstance(again.inner.rank, tuple)
    assert isinstance(again.parts[1], Inner)


@given(st.floats(allow_nan=False), st.integers(-(10**12), 10**12), st.text())
def test_round_trip_of_any_number_and_text(scale, rank, name):
    obj = Inner(scale=scale, rank=rank, name=name)
    assert through_json(obj) == obj


def test_arrays_become_lists_or_go_beside():
    matrix = np.arange(6.0).reshape(2, 3)
    obj = Outer(matrix=matrix)
    assert describe(obj)["matrix"] == [[0, 1, 2], [3, 4, 5]]
    assert np.array_equal(through_json(obj).matrix, matrix)
    several = through_json(Several((np.ones((2, 2)), np.zeros(3)))).arrays
    assert [array.shape for array in several] == [(2, 2), (3,)]
    arrays = {}
    described = describe(obj, arrays=arrays)
    assert described["matrix"] == {"array": "Outer.matrix"}
    assert np.array_equal(build(described, arrays=arrays).matrix, matrix)


def test_function_is_named_and_cannot_be_built():
    described = describe(Outer(link=np.linalg.norm))
    assert described["link"] == {"callable": "numpy.linalg.norm"}
    with pytest.raises(ValueError, match=r"load\(path, problem=\.\.\.\)"):
        build(described)


def test_what_cannot_be_described_is_named():
    with pytest.raises(TypeError, match=r"Outer\.matrix holds a set"):
        describe(Outer(matrix={1}))  # pyright: ignore[reportArgumentType]


def test_build_says_what_is_accepted():
    with pytest.raises(ValueError, match=r"unknown type 'Iner' .*did you mean 'Inner'"):
        build({"type": "Iner"})
    with pytest.raises(ValueError, match=r"Inner has no field 'rnk' \(did you mean 'rank'\?\); it has beta, name"):
        build({"type": "Inner", "rnk": 2})
    with pytest.raises(ValueError, match="needs the key 'type'"):
        build({"rank": 2})
    with pytest.raises(ValueError, match=r"ToyLearning cannot be built.*model"):
        build({"type": "ToyLearning"})


def test_same_name_from_another_module_is_refused():
    with pytest.raises(TypeError, match="'ToyRegression' exists already in toy"):
        type("ToyRegression", (Specification,), {"__module__": "elsewhere"})
    type("Inner2", (Specification,), {"__module__": "here"})
    type("Inner2", (Specification,), {"__module__": "here"})  # a notebook cell that is run twice


def test_numeric_fields():
    assert numeric_fields(Outer()) == {"width": 2.0, "rank": 1, "scale": 1.0, "beta": None}
    assert "rank" not in numeric_fields(Inner(rank=(1, 2)))
    assert numeric_fields(Ambiguous())["scale"] == 3.0


def test_with_fields_reaches_inside_and_leaves_the_original():
    problem = ToyLearning(ToyRegression(noise=0.0))
    changed = with_fields(problem, noise=0.2, weight_decay=1.0, indices=3.0)
    assert changed == ToyLearning(ToyRegression(indices=3, noise=0.2), weight_decay=1.0)
    assert type(changed.model.indices) is int
    assert problem.model.noise == 0.0


def test_with_fields_errors():
    with pytest.raises(ValueError, match=r"Ambiguous\.scale and Ambiguous\.inner\.scale"):
        with_fields(Ambiguous(), scale=1.0)
    with pytest.raises(ValueError, match=r"has no field 'nois'.*did you mean 'noise'"):
        with_fields(ToyLearning(ToyRegression()), nois=1.0)
    with pytest.raises(ValueError, match=r"indices must be an integer, got 1\.5"):
        with_fields(ToyRegression(), indices=1.5)
    with pytest.raises(ValueError, match="noise must be non-negative"):  # the description checks itself
        with_fields(ToyLearning(ToyRegression()), noise=-1.0)


def test_differences():
    first, second = describe(Outer(width=1.0)), describe(Outer(inner=Inner(scale=5.0), width=2.0))
    assert differences(first, second) == ["inner.scale", "width"]
    assert differences(first, first) == []
    assert differences({"type": "A"}, {"type": "B"}) == ["type"]


def test_value_at_a_dotted_name():
    described = describe(Outer(inner=Inner(scale=5.0), width=2.0))
    assert value_at(described, "width") == 2.0
    assert value_at(described, "inner.scale") == 5.0
    assert value_at(described, "inner.scale.more") is None
    assert value_at(described, "outer.scale") is None


class Steep:
    """A function with a state, whose methods are functions too."""

    def __call__(self, x):
        return 2 * x

    def slope(self, x):
        return 2.0


def test_functions_in_memory_are_the_same_only_if_they_are_one():
    def first(x):
        return x

    steep = Steep()
    assert differing(Outer(link=first), Outer(link=first)) == []
    assert differing(Outer(link=steep.slope), Outer(link=steep.slope)) == []
    for other in (lambda x: x, Steep().slope, steep.slope, Steep(), np.tanh):
        assert differing(Outer(link=first), Outer(link=other)) == ["link: another function"]
    assert differing(Outer(link=first), Outer(link=None)) == ["link"]
    assert differing(Outer(link=first, width=3.0), Outer(link=np.tanh)) == ["link: another function", "width"]


def test_functions_that_compare_in_ways_of_their_own():
    class Odd(Steep):
        def __eq__(self, other):
            raise ArithmeticError

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    assert differing(Outer(link=Odd()), Outer(link=Odd())) == ["link: another function"]


def test_fixed_points_look_normal_and_are_the_same_for_ever():
    z = fixed_points(5000, 2)
    # 10^4 points of a low-discrepancy sequence: moments to a percent, the fourth to what a logistic law has (4.2).
    np.testing.assert_allclose([z.mean(), z.var(), np.corrcoef(z.T)[0, 1]], [0, 1.135, 0], atol=0.03)
    np.testing.assert_allclose(fixed_points(3), [0.28273315, -0.06555333, 0.14719491], atol=1e-8)
    assert np.isfinite(fixed_points(10**6)).all()


def test_every_entry_of_a_value_counts_in_what_a_file_keeps():
    values = np.zeros((16, 5, 7))
    for entry in np.ndindex(5, 7):
        changed = values.copy()
        changed[(3, *entry)] = 1e-3
        assert condensed(changed).shape == (32,)
        assert abs(condensed(changed)).max() > 1e-6
    np.testing.assert_array_equal(condensed([1.0, 2.0]), [1.0, 2.0])
    assert condensed(np.ones((100, 3))).size <= 32
