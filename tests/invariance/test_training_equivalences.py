"""Training problems that are the same, written in two ways: equal numbers within their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx

TASK = asx.AttentionIndex(target=asx.MarchenkoPastur(0.5), noise=0.5)
#: Observables that every change of units below leaves alone.
NAMES = ("test_error", "train_error", "excess_error", "rank", "replicon")


def solve(problem: asx.RiskMinimization, alpha: float = 1.0) -> asx.Result:
    return asx.solve(problem, alpha=alpha, progress=False)


def assert_same(
    one: asx.Result, other: asx.Result, factors: Mapping[str, float] | None = None, names: tuple[str, ...] = NAMES
) -> None:
    """Equal within three errors of both, and ten roundings of what is computed on the same nodes."""
    factors = dict.fromkeys(names, 1.0) | dict(factors or {})
    assert one.status.item() == other.status.item()
    for name, factor in factors.items():
        a, b = float(one[name]), float(other[name]) / factor
        error = float(one[f"{name}_err"]) + float(other[f"{name}_err"]) / factor
        assert abs(a - b) <= 3 * error + 1e-9 * abs(a), f"{name}: {a} and {b}, errors {error}"


# -- units of targets ------------------------------------------------------------------------------------------


def scaled(size: float, *, activation: str, parameterization: str, noise: float) -> asx.RiskMinimization:
    """The same problem with eigenvalues of the target times ``size``: S times it, the noise times its square.

    With a softmax both temperatures are divided by it, so that outputs and loss stay; with a linear channel the loss is
    multiplied by its square. The decay keeps its share of the loss: Tr S grows like ``size``, Tr S^2 like its square.
    """
    softmax = activation == "softmax"
    task = asx.AttentionIndex(
        target=asx.Atoms((0.0, size, 2 * size), (0.5, 0.3, 0.2)),
        noise=noise * size**2,
        activation=activation,
        beta=1 / size if softmax else 1.0,
    )
    grows = (1 if parameterization == "factorized" else 2) - (0 if softmax else 2)
    decay = (0.03 if softmax else 0.3) / size**grows
    return asx.RiskMinimization(task, weight_decay=decay, parameterization=parameterization)


@pytest.mark.parametrize(
    ("size", "activation", "parameterization", "noise"),
    [
        (1e-6, "softmax", "factorized", 0.0),  # was "the penalty keeps S at zero"
        (1e-6, "linear", "full", 0.0),
        (3e5, "softmax", "full", 0.5),
        (3e5, "linear", "factorized", 0.5),
    ],
)
def test_the_unit_of_the_target_does_not_matter(
    size: float, activation: str, parameterization: str, noise: float
) -> None:
    options: dict[str, Any] = {"activation": activation, "parameterization": parameterization, "noise": noise}
    loss = size**2 if activation == "linear" else 1.0
    factors = dict.fromkeys(("test_error", "train_error", "train_loss", "excess_error"), loss)
    factors |= dict.fromkeys(("estimation_error", "m", "q"), size**2) | {"delta": size, "rank": 1.0, "replicon": 1.0}
    assert_same(solve(scaled(1.0, **options)), solve(scaled(size, **options)), factors)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-5, 1e5])
@pytest.mark.parametrize(
    "target",
    [
        lambda size: asx.RankedPowerLaw(1.0, 1000, mean_square=size**2),
        lambda size: asx.Spiked(asx.Atoms((0.0, size), (0.5, 0.5)), (4 * size,), dim=100),
        lambda size: asx.PowerLaw(2.5, mean_square=size**2),
    ],
)
def test_the_unit_of_other_targets(target: Callable[[float], Any], size: float) -> None:
    def problem(size: float) -> asx.RiskMinimization:
        task = asx.AttentionIndex(target=target(size), noise=0.5 * size**2, beta=1 / size)
        return asx.RiskMinimization(task, weight_decay=0.03 / size)

    factors: dict[str, float] = dict.fromkeys(("estimation_error", "m", "q"), size**2) | {"delta": size}
    one, other = solve(problem(1.0)), solve(problem(size))
    assert_same(one, other, factors)


# -- units of losses and penalties -----------------------------------------------------------------------------


def softmax_loss(size: float) -> Callable[[Any, Any], Any]:
    def loss(y: Any, h: Any) -> Any:
        weights = jnp.exp(h - h.max(axis=-1, keepdims=True))
        return size * ((weights / weights.sum(axis=-1, keepdims=True) - y) ** 2).sum()

    return loss


LOSSES = ("test_error", "train_error", "train_loss", "excess_error", "potential", "mhat", "Sigmahat")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize(("decay", "alpha"), [(0.03, 1.0), (1e-3, 0.28)])
def test_a_loss_in_another_unit_with_its_decay(size: float, decay: float, alpha: float) -> None:
    """Where the proximal map jumps, too, at the second point: differences of 1e-6 in the loss are no absolute ones."""
    found = [
        solve(asx.RiskMinimization(TASK, weight_decay=decay * unit, loss=softmax_loss(unit)), alpha)
        for unit in (1.0, size)
    ]
    factors = dict.fromkeys(LOSSES, size) | {"Sigma": 1 / size, "qhat": size**2, "m": 1.0, "q": 1.0, "jump_weight": 1.0}
    one, other = found
    assert one.status_code.item() == other.status_code.item()
    for name, factor in factors.items():
        assert float(other[name]) / factor == pytest.approx(float(one[name]), rel=1e-6), name
        if name != "jump_weight":  # as well known in one unit as in the other
            assert float(other[f"{name}_err"]) / factor == pytest.approx(float(one[f"{name}_err"]), rel=1e-3), name


@pytest.mark.slow
def test_the_own_squared_loss_of_large_pre_activations():
    """Steps of a descent were at most one in h, whatever the size of h."""
    for size in (1.0, 1e5):
        closed = scaled(size, activation="linear", parameterization="full", noise=0.5)
        own = asx.RiskMinimization(
            closed.model,
            weight_decay=closed.weight_decay,
            parameterization="full",
            loss=lambda y, h: ((y - h) ** 2).sum(),
        )
        names = ("test_error", "train_error", "estimation_error", "m", "q", "Sigma")
        one, other = solve(closed), solve(own)
        for name in names:
            error = float(one[f"{name}_err"]) + float(other[f"{name}_err"])
            assert abs(float(one[name]) - float(other[name])) < 3 * error, name


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_a_penalty_in_another_unit_with_its_strength(size):
    def penalty(t: Any) -> Any:
        return size * (t + 0.5 * t**2)

    task = asx.AttentionIndex(noise=0.5, activation="linear")
    plain = asx.RiskMinimization(task, weight_decay=0.3, penalty=lambda t: t + 0.5 * t**2)
    assert_same(solve(plain), solve(asx.RiskMinimization(task, weight_decay=0.3 / size, penalty=penalty)))


def test_what_only_rescales_the_learner():
    """Two temperatures against one, a narrower W against its decay."""
    one = solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.04))
    other = solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5, beta=2.0, target_beta=1.0), weight_decay=0.08))
    assert_same(one, other, {"train_loss": 1.0, "m": 0.5, "q": 0.25, "delta": 1.0})
    wide = solve(asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.02, width_ratio=4.0))
    assert_same(one, wide, {"train_loss": 1.0, "m": 1.0, "q": 1.0})


# -- a penalty with a kink -------------------------------------------------------------------------------------


def test_weight_decay_is_a_wall_and_a_slope_on_all_symmetric_matrices():
    """Its rank was a count of nodes: 0.69176(0) in the place of 0.66665(0)."""
    decay = asx.RiskMinimization(TASK, weight_decay=0.02)
    wall = asx.RiskMinimization(
        TASK, weight_decay=0.02, parameterization="full", penalty=lambda t: jnp.where(t > 0, t, -1e6 * t)
    )
    assert_same(solve(decay), solve(wall))


@pytest.mark.slow
@pytest.mark.parametrize(
    "penalty", [lambda t: t, abs, lambda t: jnp.maximum(t, 2 * t - 1e6), lambda t: jnp.where(t < 0.3, t, t)]
)
def test_weight_decay_written_as_a_penalty(penalty: Callable[[Any], Any]):
    decay = asx.RiskMinimization(TASK, weight_decay=0.02)
    own = asx.RiskMinimization(TASK, weight_decay=0.02, penalty=penalty)
    assert_same(solve(decay), solve(own))


def test_shares_of_eigenvalues_at_a_kink_are_integrals():
    """The share of eigenvalues at the kink t = 1 of max(t, 5 t - 4) goes smoothly with the decay."""
    from asymptotix.attention_index.theory.training_equations import TrainingEquations

    def penalty(t: Any) -> Any:
        return jnp.maximum(t, 5 * t - 4)

    ranks, masses = [], []
    target = TASK.target
    grid = np.linspace(0.1, 0.1005, 21)
    for decay in grid:
        equations = TrainingEquations(asx.RiskMinimization(TASK, weight_decay=float(decay), penalty=penalty))
        own: Any = equations.penalty
        ranks.append(own.estimate(target, 1.0, 0.25, 1.0).rank)
        (_, cut), (first, last) = own.plateaus(1.0, 1.0)
        law = target.convolution(0.5)
        masses.append(float(law.mass_above(first) - law.mass_above(last)))
        assert ranks[-1] == pytest.approx(float(law.mass_above(cut)), rel=1e-9)
    # a smooth function over a short interval is nearly linear: a count of some 200 nodes would go in steps of 1e-2
    for column in (ranks, masses):
        line = np.polynomial.Polynomial.fit(grid, column, 2)
        assert abs(line(grid) - column).max() < 1e-8


@pytest.mark.slow
def test_scramblings_that_agree_by_chance():
    """The library's squared loss, on other nodes: the four test errors agree to a fortieth of their usual scatter."""
    task = asx.AttentionIndex(target=asx.PowerLaw(3.47, 71.7), activation="softmax", beta=0.577)
    options: Any = {"weight_decay": 0.778, "width_ratio": 1.0, "parameterization": "full"}

    def squared(y: Any, h: Any) -> Any:
        return jnp.sum((y - jax.nn.softmax(0.577 * h, axis=-1)) ** 2)

    own = solve(asx.RiskMinimization(task, loss=squared, **options), alpha=3.03)
    exact = solve(asx.RiskMinimization(task, **options), alpha=3.03)
    for name in ("test_error", "train_error", "train_loss", "estimation_error"):
        apart = abs(float(own[name]) - float(exact[name]))
        assert apart <= 5 * float(own[f"{name}_err"]), name
        assert float(own[f"{name}_err"]) < 1e-3 * float(own[name])
