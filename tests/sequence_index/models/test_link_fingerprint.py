"""What a file knows a link by: functions that differ in rare places, in units, or in their program alone."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import asymptotix as asx
from asymptotix.core.specification import describe, differences, weakly_known


def described(link, indices: int = 1) -> dict:
    return describe(asx.MultiIndex(link, indices, 0.1))


def cut(width: float):
    return lambda z: jnp.where(abs(z[0]) < width, z[0] ** 2, 0.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cut(2.0), cut(3.0)),
        (lambda z: z[0] ** 2, lambda z: jnp.where((abs(z[0]) > 1.66) & (abs(z[0]) < 3.37), -1.0, z[0] ** 2)),
        (cut(4.2), cut(4.3)),
        (cut(30.0), cut(31.0)),  # by its program alone
        (lambda z: 1e-12 * z[0], lambda z: 2e-12 * z[0]),
    ],
)
def test_functions_that_differ_are_told_apart(one, other):
    assert differences(described(one), described(other)) == ["link: another function"]
    assert differences(described(one), described(one)) == []


def test_the_same_function_written_again_is_the_same():
    assert differences(described(cut(2.0)), described(cut(2.0))) == []


def test_another_version_of_jax_is_asked_for_values_only():
    new, old = described(cut(2.0)), described(lambda z: jnp.where(-abs(z[0]) > -2.0, z[0] ** 2, 0.0))
    assert differences(new, old) == ["link: another function"]
    old["link"]["code"] = "0.4.0:" + old["link"]["code"].partition(":")[2]
    assert differences(new, old) == []


def test_files_of_earlier_versions_are_known_weakly():
    new, old = described(cut(2.0)), described(cut(3.0))
    for name in ("sample", "code"):
        del old["link"][name]
    assert weakly_known(old) == ["link"]
    assert weakly_known(new) == []
    assert differences(old, new) == []  # at the sixteen points that it kept there is no difference


@pytest.mark.slow
def test_numbers_of_a_function_are_not_given_for_one_that_differs_in_rare_places(tmp_path):
    def problem(width: float) -> asx.BayesOptimal:
        return asx.BayesOptimal(asx.MultiIndex(cut(width), 1))

    file, store, options = tmp_path / "two.nc", tmp_path / "store", {"alpha": [0.1]}
    asx.sweep(problem(2.0), over=options, store=store, progress=False).save(file)
    for call in (
        lambda other: asx.sweep(other, over=options, store=store, progress=False),
        lambda other: asx.solve(other, resume=file, progress=False, alpha=options["alpha"]),
        lambda other: asx.load(file, problem=other),
    ):
        with pytest.raises(ValueError, match="link: another function"):
            call(problem(3.0))
    assert asx.load(file, problem=problem(2.0)).ok
