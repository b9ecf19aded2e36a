"""Message passing on links of one's own: the plan, what is said of the time, runs against state evolution."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from asymptotix import GAMP, BayesOptimal, DeepAttention, MultiIndex, simulate, solve
from asymptotix.core.progress import Progress
from asymptotix.sequence_index.algorithms import gamp
from asymptotix.sequence_index.algorithms.schedule import PlanNodes, learning_stages
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.channels.links.cubature import CubatureChannel
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution


def signed(z):
    return jnp.sign(z[0]) * z[1]


@pytest.fixture
def without_slow_posteriors(monkeypatch):
    """Cubature takes 15 ms a sample: message passing and its plan go without."""

    def refused(*args, **options):
        raise AssertionError("cubature was asked for")

    monkeypatch.setattr(CubatureChannel, "posterior", refused)


@pytest.mark.slow
def test_a_plan_follows_what_solve_finds_on_its_nodes(without_slow_posteriors):
    evolution = StateEvolution.of(channel_of(MultiIndex(signed, 2, 0.01)))
    nodes = PlanNodes(evolution, 2**11)
    assert nodes.averages is evolution.nodes.few
    alpha, said = 1.6, []
    stages = learning_stages(nodes, alpha, iterations=60, damping=1.0, say=said.append)
    assert len(said) == sum(stage.iterations for stage in stages)
    expected = evolution.uninformed(alpha, tolerance=1e-2).V
    assert np.diag(stages[-1].V[-1]) == pytest.approx(np.diag(expected), rel=0.1)  # few nodes: a few per cent


def test_every_direction_enters_once_where_nothing_is_learned():
    """Below all thresholds variances come back to one exactly: what is active by then does not enter again."""
    evolution = StateEvolution.of(channel_of(MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2)))
    stages = learning_stages(PlanNodes(evolution, 2**11), 0.4, iterations=60, damping=1.0)
    frames = np.concatenate([stage.frame for stage in stages], axis=1)
    assert np.allclose(frames.T @ frames, np.eye(2), atol=1e-6)


def test_a_plan_is_made_once_for_a_problem_and_alpha(monkeypatch):
    made = []
    original = gamp._made_plan
    monkeypatch.setattr(gamp, "_made_plan", lambda *args: made.append(args[1]) or original(*args))
    algorithm = GAMP(iterations=7)  # a plan that no other test has asked for

    def run(alpha: float, seeds: list[int]) -> np.ndarray:
        problem = BayesOptimal(DeepAttention(layers=1, tokens=2))  # equal to the others
        return simulate(problem, algorithm, alpha=alpha, dim=40, seeds=seeds, progress=False).overlap.values

    together = run(2.0, [0, 1])
    assert np.allclose(run(2.0, [1]).ravel(), together.ravel()[1:], atol=1e-3)  # single precision
    assert made == [2.0]
    run(3.0, [0])
    assert made == [2.0, 3.0]


def test_plans_that_are_kept_are_not_too_many(monkeypatch):
    monkeypatch.setattr(gamp, "_MOST_PLANS", 2)
    monkeypatch.setattr(gamp, "_PLANS", type(gamp._PLANS)())
    theory = BayesOptimal(DeepAttention(layers=1, tokens=2)).theory
    for samples in (40, 50, 60):
        gamp.planned(theory, samples, 20, gamp._Way(False, "empirical", 3, 1.0), print)
    assert [key[1] for key in gamp._PLANS] == [2.5, 3.0]


class Heard(Progress):
    """Keeps what is announced, and what was said before the first announcement."""

    def __init__(self) -> None:
        super().__init__(None, "heard", enabled=False)
        self.announced: list[str] = []

    def announce(self, text: str) -> None:
        self.announced.append(text)


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # three iterations are few
def test_the_time_of_all_runs_is_said_before_the_first(monkeypatch):
    monkeypatch.setattr(gamp, "_SILENT_SECONDS", 0.0)
    progress = Heard()
    problem = BayesOptimal(MultiIndex(signed, 2, 0.1))
    with progress:
        simulate(problem, GAMP(iterations=3), alpha=[0.5, 1.0], dim=20, seeds=2, progress=progress)
    *compiling, estimate = progress.announced
    assert estimate.startswith("at most about 0:00:0")
    assert estimate.endswith("for 4 runs")
    assert all(text.startswith("compiling the posterior of MultiIndex") for text in compiling)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # at this size some runs fluctuate
def test_runs_on_a_link_reach_what_state_evolution_says(without_slow_posteriors):
    problem = BayesOptimal(MultiIndex(signed, 2, 0.01))
    runs = simulate(problem, GAMP(), alpha=1.6, dim=200, seeds=4, progress=False)
    found = np.einsum("...ii->...i", runs.overlap.values).reshape(4, 2)
    expected = np.diag(solve(problem, alpha=1.6, tolerance=1e-2, progress=False).overlap.values.reshape(2, 2))
    error = found.std(0, ddof=1) / 2
    assert (abs(found.mean(0) - expected) < 4 * error + 0.05).all(), found  # a bias of about 1/sqrt(D) is left
    assert (runs.status_code != "failed").all()


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # four iterations are few
def test_runs_on_a_saturating_link_are_those_of_linear_regression():
    """Outputs close to the limits of an error function hide nothing."""
    found = [
        simulate(BayesOptimal(MultiIndex(link, 1)), GAMP(iterations=4), alpha=0.6, dim=60, seeds=2, progress=False)
        for link in (lambda z: z[0], lambda z: erf(2 * z[0]))
    ]
    np.testing.assert_allclose(found[1].overlap, found[0].overlap, rtol=1e-6)  # rounding of outputs close to a limit
    assert (found[0].overlap > 0.2).all()
