"""The iterated map of training is continuous: no estimator, rule or set of nodes changes with the order parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.attention_index.loss.quadrature_nodes import LossNodes
from asymptotix.attention_index.penalties.spectral_estimate import overlaps
from asymptotix.attention_index.theory.state_evolution import TrainingEvolution

MOVE = 1e-6
#: A map whose derivatives are this large is steep, and no jump: a jump of 1e-4 would show as a hundred times that.
STEEPEST = 100.0

TARGETS = (asx.MarchenkoPastur(0.5), asx.Atoms((0.0, 1.0, 2.0), (0.5, 0.3, 0.2)), asx.PowerLaw(2.5))


def evolution(kind: str, target: Any, nodes: LossNodes | None, **options: Any) -> TrainingEvolution:
    tokens = {"linear": 2, "pair": 2, "rows": 3, "own": 2}[kind]
    activation = "linear" if kind == "linear" else "softmax"
    task = asx.AttentionIndex(tokens=tokens, target=target, noise=0.3, activation=activation)
    if kind == "own":
        options["loss"] = "cross_entropy"
    return asx.RiskMinimization(task, weight_decay=0.05, **options).theory.equations.evolution(nodes)


def wall(t: Any) -> Any:
    return jnp.where(t > 0, t + 0.1 * t**2, -1e3 * t)


def kinked(t: Any) -> Any:
    return jnp.maximum(t, 3 * t - 1.0)


AVERAGERS: dict[str, Callable[[Any], TrainingEvolution]] = {
    "closed form": lambda target: evolution("linear", target, None),
    "closed form, narrow": lambda target: evolution("linear", target, None, width_ratio=0.3),
    "Gauss-Hermite": lambda target: evolution("pair", target, LossNodes(order=10)),
    "Sobol, two tokens": lambda target: evolution("pair", target, LossNodes(count=2**9)),
    "Sobol, three tokens": lambda target: evolution("rows", target, LossNodes(count=2**8)),
    "a loss in JAX": lambda target: evolution("own", target, LossNodes(count=2**8)),
    "a full matrix": lambda target: evolution("pair", target, LossNodes(order=8), parameterization="full"),
    "a wall as penalty": lambda target: evolution(
        "pair", target, LossNodes(order=8), parameterization="full", penalty=wall
    ),
    "a penalty with a kink": lambda target: evolution("pair", target, LossNodes(order=8), penalty=kinked),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("narrow" in name)) for name in AVERAGERS]
)
def test_a_small_move_changes_the_map_little(name):
    rng = np.random.default_rng(3)
    for target in TARGETS if name.startswith("closed") else TARGETS[:1]:
        map_of = AVERAGERS[name](target)
        for _ in range(3):
            # from little to much: cosines from 0.1 to 0.99; with Sigma below 1 no proximal map jumps
            ends = rng.uniform([-3.0, -2.0, -4.0], [0.0, 4.0, -0.1], (2, 3))
            for share in rng.uniform(size=12):
                x = ends[0] + share * (ends[1] - ends[0])
                direction = rng.standard_normal(3)
                try:
                    here = map_of.step(2.0, x)
                    there = map_of.step(2.0, x + MOVE * direction / np.linalg.norm(direction), here.points)
                except FloatingPointError:  # the penalty leaves nothing of S: no map there
                    continue
                change = abs(map_of.image(there) - map_of.image(here)).max()
                assert change < STEEPEST * MOVE, f"{target} at {x}: {change:.2g}"


def test_the_two_forms_of_the_overlap_go_over_smoothly():
    """Narrow bulks: weights are known to a few digits, and the two forms of m differ by what that leaves."""
    target = asx.Atoms((0.0, 1.0), (0.5, 0.5))
    delta = 1e-5
    x, weight, g = target.convolution(delta).nodes_cut_at(0.5)
    wrong = weight * (1 + 1e-4)  # as if they were known to four digits
    found = [overlaps(0.5, delta, (x, wrong, g), scale * x).m for scale in np.linspace(0.3, 0.7, 4001)]
    assert abs(np.diff(found, 2)).max() < 1e-8  # a switch at one half would be a step of 1e-4


def test_where_the_proximal_map_jumps_the_status_says_so():
    task = asx.AttentionIndex(target=asx.MarchenkoPastur(0.5), noise=0.5)
    found = asx.solve(asx.RiskMinimization(task, weight_decay=1e-3), alpha=0.28, progress=False)
    assert float(found.jump_weight) > 1e-3
    assert "the proximal map jumps on" in found.status.item()
