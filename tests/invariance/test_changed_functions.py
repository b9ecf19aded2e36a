"""A model made after a user's function has changed computes with the changed function; unchanged functions share work.

A function changes without a new function object: a global that it reads, an attribute of a callable object. Caches of
this library and of JAX know functions by their identity, so that old numbers came back.
"""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.loss.own_functions import penalty_functions, unit_of_loss
from asymptotix.core.describing.fingerprints import program_digest
from asymptotix.core.specification import describe, differences, differing
from asymptotix.numerics.programs.snapshot import Snapshot, snapshot
from asymptotix.sequence_index.channels.choose import channel_of

TASK = asx.AttentionIndex(tokens=1, activation="linear", noise=0.5)
STRENGTH = 1.0


class Strength:
    """A callable object with an attribute that may change."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, z: Any) -> Any:
        return jnp.tanh(self.value * z[0]) + 0.3 * z[0] ** 2


def link(z):
    return jnp.tanh(STRENGTH * z[0]) + 0.3 * z[0] ** 2


def penalty(t):
    return t + STRENGTH * jnp.maximum(t - 0.3, 0)


def loss(y, h):
    return ((y - h) ** 2).sum() + STRENGTH * ((y - h) ** 4).sum()


def activation(logits):
    return jnp.tanh(STRENGTH * logits)


@pytest.fixture
def change(monkeypatch):
    return lambda value: monkeypatch.setitem(globals(), "STRENGTH", value)


def overlap(link: Any) -> float:
    problem = asx.BayesOptimal(asx.MultiIndex(link, 1, 0.1))
    return asx.solve(problem, alpha=1.0, progress=False).overlap.item()


def error(**functions: Any) -> float:
    problem = asx.RiskMinimization(TASK, weight_decay=0.2, **functions)
    return float(asx.solve(problem, alpha=1.0, tolerance=1e-3, progress=False).estimation_error)


# -- changed functions ---------------------------------------------------------------------------------------------


def test_link_that_reads_a_changed_global(change):
    change(0.5)
    before = overlap(link)
    change(3.0)
    assert overlap(link) == overlap(Strength(3.0))
    change(0.5)
    assert overlap(link) == before


def test_link_with_a_changed_attribute():
    changing = Strength(0.5)
    overlap(changing)
    changing.value = 3.0
    assert overlap(changing) == overlap(Strength(3.0))


def test_penalty_that_reads_a_changed_global(change):
    change(1.0)
    error(penalty=penalty)
    change(5.0)
    assert error(penalty=penalty) == error(penalty=lambda t: t + 5.0 * jnp.maximum(t - 0.3, 0))


@pytest.mark.slow  # averages over nodes, three times
def test_loss_that_reads_a_changed_global(change):
    change(1.0)
    before = error(loss=loss)
    change(0.25)
    assert error(loss=loss) == pytest.approx(
        error(loss=lambda y, h: ((y - h) ** 2).sum() + 0.25 * ((y - h) ** 4).sum()), rel=1e-9
    )
    change(1.0)
    assert error(loss=loss) == before


def test_trials_see_a_changed_function(change):
    change(1.0)
    asx.RiskMinimization(TASK, penalty=penalty)
    unit, kinks = unit_of_loss(loss, TASK), penalty_functions(penalty).kinks
    change(50.0)
    assert unit_of_loss(loss, TASK) > 4 * unit
    assert penalty_functions(penalty).kinks[0][2] > kinks[0][2] + 40
    change(-5.0)
    with pytest.raises(ValueError, match="penalty must be convex"):
        asx.RiskMinimization(TASK, penalty=penalty)
    change(jnp.nan)
    with pytest.raises(ValueError, match="link must return finite real numbers"):
        asx.MultiIndex(link, 1)


def test_activation_that_reads_a_changed_global(change):
    Z = np.random.default_rng(0).standard_normal((5, 1, 2))

    def output() -> np.ndarray:
        channel = channel_of(asx.DeepAttention(1, 2, activation=activation))
        return np.concatenate([np.ravel(channel.observe(Z)), np.ravel(channel.output(Z))])

    change(1.0)
    before = output()
    change(0.5)
    after = output()
    assert abs(after - before).max() > 0.01
    change(1.0)
    assert np.array_equal(output(), before)


@pytest.mark.slow  # compiles Adam three times
def test_experiment_with_a_changed_penalty(change):
    def trained(penalty: Any) -> float:
        problem = asx.RiskMinimization(TASK, weight_decay=0.2, penalty=penalty)
        runs = asx.simulate(problem, asx.Adam(steps=30), dim=20, seeds=1, alpha=1.0, progress=False)
        return runs.estimation_error.item()

    change(1.0)
    trained(penalty)
    change(5.0)
    assert trained(penalty) == trained(lambda t: t + 5.0 * jnp.maximum(t - 0.3, 0))


def test_files_hold_the_numbers_of_the_function_that_they_name(change, tmp_path):
    def problem(link: Any) -> asx.BayesOptimal:
        return asx.BayesOptimal(asx.MultiIndex(link, 1, 0.1))

    change(0.5)
    first = asx.sweep(problem(link), over={"alpha": [1.0]}, store=tmp_path / "first", progress=False)
    change(3.0)
    with pytest.raises(ValueError, match="link"):
        asx.sweep(problem(link), over={"alpha": [1.0]}, store=tmp_path / "first", progress=False)
    second = asx.sweep(problem(link), over={"alpha": [1.0]}, store=tmp_path / "second", progress=False)
    assert second.overlap.item() == overlap(Strength(3.0)) != first.overlap.item()
    asx.solve(problem(link), alpha=1.0, progress=False).save(tmp_path / "saved.nc")
    change(0.5)
    with pytest.raises(ValueError, match="link: another function"):
        asx.load(tmp_path / "saved.nc", problem=problem(link))


def test_model_keeps_the_function_that_it_was_made_with(change):
    """A problem made before the change computes and is saved with the numbers of then, in whichever order."""
    change(0.5)
    model = asx.MultiIndex(link, 1, 0.1)
    early = asx.BayesOptimal(model)
    described, value = describe(early), float(model.evaluate(jnp.ones((1, 1))))
    change(3.0)
    late = asx.BayesOptimal(asx.MultiIndex(link, 1, 0.1))
    assert describe(early) == described
    assert float(model.evaluate(jnp.ones((1, 1)))) == pytest.approx(value, rel=1e-6)
    found = asx.solve(early, alpha=1.0, progress=False).overlap.item()
    assert found == overlap(Strength(0.5))
    assert early.model != late.model
    assert differing(early, late) == ["model.link: another function"]
    assert differences(describe(early), describe(late)) == ["model.link: another function"]


def test_resumed_work_is_not_that_of_the_old_function(change):
    change(0.5)
    before = asx.solve(asx.BayesOptimal(asx.MultiIndex(link, 1, 0.1)), alpha=[1.0], progress=False)
    change(3.0)
    with pytest.raises(ValueError, match="link: another function"):
        asx.solve(asx.BayesOptimal(asx.MultiIndex(link, 1, 0.1)), alpha=[1.0, 2.0], resume=before, progress=False)


# -- unchanged functions -------------------------------------------------------------------------------------------


def test_models_of_one_function_share_its_programs():
    one, other = (asx.MultiIndex(link, 1, 0.1) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert channel_of(one) is channel_of(other)
    assert channel_of(one) is not channel_of(asx.MultiIndex(Strength(2.0), 1, 0.1))
    assert penalty_functions(penalty) is penalty_functions(penalty)


def test_users_see_their_own_function():
    model = asx.MultiIndex(link, 1, 0.1)
    assert model.link is link
    assert repr(model) == f"MultiIndex(link={link!r}, indices=1, noise=0.1)"
    problem = asx.RiskMinimization(TASK, penalty=penalty, loss=loss)
    assert problem.penalty is penalty
    assert problem.loss is loss
    assert "Snapshot" not in repr(problem) + problem._repr_html_()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_are_equal(copied):
    for made in (asx.MultiIndex(link, 1, 0.1), asx.RiskMinimization(TASK, penalty=penalty, loss=loss)):
        assert copied(made) == made


@pytest.mark.slow  # a time
def test_a_thousand_models_of_one_link_are_made_in_seconds():
    asx.MultiIndex(link, 1, 0.1)
    begun = time.perf_counter()
    for k in range(100):
        asx.MultiIndex(link, 1, 0.1 + 0.001 * k)
    assert time.perf_counter() - begun < 2.0


# -- snapshots -----------------------------------------------------------------------------------------------------


def test_snapshot_is_one_object_for_one_program(change):
    change(1.0)
    first = snapshot(penalty, ())
    assert snapshot(penalty, ()) is first
    assert snapshot(first, ()) is first
    assert first(jnp.float32(2.0)).dtype == jnp.float32
    change(1.0 + 1e-12)
    second = snapshot(penalty, ())
    assert second is not first


def test_program_that_is_no_longer_known_is_not_guessed(change):
    change(7.0)
    known = snapshot(penalty, ())
    change(2.0)
    with pytest.raises(ValueError, match="has changed since the model was made"):
        known(jnp.float32(2.0))


def test_function_with_integers_of_numpy_is_computed_in_both_precisions():
    places = np.array([0, 2])
    known = snapshot(lambda x: jnp.ones(3).at[places].set(x), (2,))
    with jax.enable_x64(True):
        assert known(jnp.full(2, 0.1)).tolist() == [0.1, 1.0, 0.1]
    assert known(jnp.full(2, 0.5)).dtype == jnp.float32


def test_snapshot_sees_a_changed_derivative():
    class Smoothed:
        slope = 1.0

        def __call__(self, t):
            @jax.custom_jvp
            def kinked(t):
                return jnp.abs(t)

            @kinked.defjvp
            def _(primals, tangents):
                return jnp.abs(primals[0]), self.slope * tangents[0]

            return kinked(t)

    one = Smoothed()
    first = snapshot(one, ())
    one.slope = 2.0
    assert snapshot(one, ()) is not first


def test_snapshot_maps_over_leading_axes():
    softmax = snapshot(lambda x: jax.nn.softmax(x, axis=-1) @ x, (3, 3), leading=True)
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 3))
    with jax.enable_x64(True):
        assert np.allclose(softmax(jnp.asarray(x)), np.asarray(jax.nn.softmax(x, axis=-1) @ x), rtol=1e-12)
    assert softmax(jnp.asarray(x[0, 0], jnp.float32)).shape == (3, 3)


def test_function_that_cannot_be_traced_is_known_by_its_identity():
    untraceable = snapshot(lambda t: float(t), ())
    assert isinstance(untraceable, Snapshot)
    assert untraceable(2) == 2.0


def test_changed_values_of_an_unhashable_function():
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, c):
            self.c = c

        def __eq__(self, other):
            return True

        def __call__(self, t):
            return self.c * t**2

    one = Unhashable(1.0)
    first = snapshot(one, ())
    assert snapshot(one, ()) is first
    assert snapshot(Unhashable(1.0), ()) is not first
    one.c = 2.0
    assert snapshot(one, ()) is not first


# -- digests -------------------------------------------------------------------------------------------------------


def held(kind: str, array: Any) -> Any:
    """A function that holds an array inside another function of JAX."""
    held = jnp.asarray(array)

    @jax.custom_jvp
    def ruled(t):
        return jnp.sum(held * t)

    @ruled.defjvp
    def _(primals, tangents):
        return ruled(*primals), jnp.sum(held) * tangents[0]

    return {
        "plain": lambda t: jnp.sum(held * t),
        "jit": jax.jit(lambda t: jnp.sum(held * t)),
        "scan": lambda t: jax.lax.scan(lambda c, _: (c + jnp.sum(held * t), None), t, None, 3)[0],
        "cond": lambda t: jax.lax.cond(t > 99, lambda: jnp.sum(held * t), lambda: t),
        "while": lambda t: jax.lax.while_loop(lambda c: jnp.sum(held) * c < 1, lambda c: c + jnp.sum(held * t) + 1, t),
        "custom_jvp": ruled,
    }[kind]


KINDS = ("plain", "jit", "scan", "cond", "while", "custom_jvp")


@pytest.mark.parametrize("kind", KINDS)
def test_digest_sees_arrays_inside_functions_of_jax(kind):
    def digest(array: Any) -> str:
        with jax.enable_x64(True):
            return program_digest(held(kind, array), ())

    assert digest([1.0, 2.0]) == digest([1.0, 2.0])
    assert digest([1.0, 2.0]) != digest([1.0, 3.0])
    assert digest([1.0, 2.0]) != digest([[1.0, 2.0]])
    assert digest([1000001, 2]) != digest([1000002, 2])
    assert snapshot(held(kind, [1.0, 2.0]), ()) is not snapshot(held(kind, [1.0, 3.0]), ())


@pytest.mark.parametrize("kind", KINDS)
def test_digest_does_not_depend_on_the_precision_of_the_user(kind):
    with jax.enable_x64(True):
        double = held(kind, [1.0, 0.1])
    single = held(kind, [1.0, 0.1])
    with jax.enable_x64(True):
        assert program_digest(double, ()) == program_digest(single, ())


def test_penalties_that_differ_far_out_are_told_apart_in_units_of_the_target():
    big = asx.AttentionIndex(
        tokens=1, activation="linear", noise=0.5e6, target=asx.Atoms(values=(0.0, 1000.0), weights=(0.5, 0.5))
    )

    def described(c: float, scale: float = 1.0) -> dict:
        function = lambda t: t * t + c * jnp.maximum(abs(t) - 100, 0) ** 2  # noqa: E731
        made = describe(asx.RiskMinimization(big, weight_decay=1.0, parameterization="full", penalty=function))
        made["penalty"]["code"] = ""  # as another version of JAX, whose programs are not compared
        return made

    assert differences(described(0.1), described(0.1)) == []
    assert differences(described(0.1), described(0.5)) == ["penalty: another function"]


def test_samples_at_other_places_are_not_compared():
    """A swept target changes the places at which the sample is taken, not the function."""

    def described(kappa: float) -> dict:
        task = asx.AttentionIndex(tokens=1, activation="linear", target=asx.Atoms(values=(kappa,), weights=(1.0,)))
        return describe(asx.RiskMinimization(task, weight_decay=1.0, parameterization="full", penalty=jnp.square))

    assert "penalty: another function" not in differences(described(1.0), described(64.0))


# -- links without a forward-mode rule -----------------------------------------------------------------------------


def test_link_without_forward_derivative_is_refused_at_once():
    @jax.custom_vjp
    def rounded(x):
        return jnp.round(x)

    rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    with pytest.raises(ValueError, match=r"link must have a forward-mode derivative.*jax.custom_jvp") as caught:
        asx.MultiIndex(lambda z: z[0] + 0.1 * rounded(z[0]), 1)
    assert "\n" not in str(caught.value)
