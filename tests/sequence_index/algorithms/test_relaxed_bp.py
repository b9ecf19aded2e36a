"""Message passing against relaxed belief propagation, which has no reaction term."""

import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix import GAMP, BayesOptimal, DeepAttention, simulate
from asymptotix.sequence_index.algorithms import message_passing as mp
from asymptotix.sequence_index.algorithms.data_sets import DataSets, draw_data
from asymptotix.sequence_index.algorithms.relaxed_bp import Messages, RelaxedBP
from asymptotix.sequence_index.channels.choose import channel_of
from toy import ToyLearning, ToyRegression

ONE_LAYER = DeepAttention(layers=1, tokens=2)
SIDE, ALPHA, STEPS = 0.2, 0.4, 6


def gamp_estimates(data: DataSets, *, reaction: bool) -> list[np.ndarray]:
    """Estimates (D,) after every iteration, the reaction term in omega being kept or left out."""
    channel, dim = channel_of(ONE_LAYER), data.tokens.shape[3]
    state = mp.MessageState(
        W=np.float32(np.sqrt(SIDE)) * data.side,
        g=jnp.zeros((1, data.samples, 1, 2), jnp.float32),
        V=(1 - SIDE) * np.eye(1)[None],
        reaction=np.eye(1)[None],
    )
    found = []
    for _ in range(STEPS):
        state.reaction = state.reaction * reaction
        mp.iterate(
            channel, data, state,
            active=np.eye(1), precision=np.zeros((1, 1)), own_precision=np.ones(1, bool), damping=np.ones(1),
            side_information=SIDE,
        )  # fmt: skip
        found.append(np.asarray(state.W, float).reshape(dim))
    return found


def distances(dim: int, seed: int, *, reaction: bool) -> np.ndarray:
    """Of the two algorithms' estimates, relative to their size, after every iteration."""
    channel = channel_of(ONE_LAYER)
    data = draw_data(channel, round(ALPHA * dim), dim, [seed], SIDE)
    messages, found = Messages(channel, data, SIDE), []
    for W in gamp_estimates(data, reaction=reaction):
        messages.iterate(None)
        found.append(np.linalg.norm(W - messages.W[0]) / np.linalg.norm(messages.W))
    return np.array(found)


@pytest.mark.slow
def test_reaction_terms_are_right():
    right, none = (np.mean([distances(200, s, reaction=r) for s in range(3)], axis=0) for r in (True, False))
    assert right[0] < 2 / np.sqrt(200)  # messages differ from omega by O(1/sqrt(D))
    assert right.max() < 4 / np.sqrt(200)
    # At the first iteration there is no score to react to; later the distance is 0.56 and more at every D.
    assert (none[1:] > 2.5 * right[1:]).all()
    assert none[-1] > 5 * right[-1]


@pytest.mark.slow
def test_the_distance_falls_with_the_dimension():
    small, large = (np.mean([distances(dim, s, reaction=True)[0] for s in range(4)]) for dim in (50, 200))
    assert large < 0.75 * small  # 1/sqrt(D) would be a half


def test_first_iteration_by_hand():
    """One coordinate's message from formulas of sums over single coordinates."""
    channel, dim = channel_of(ONE_LAYER), 12
    data = draw_data(channel, 5, dim, [1], SIDE)
    messages = Messages(channel, data, SIDE)
    X, S = messages.X, messages.side[0]
    z, w, v = np.asarray(data.observation[0], float), np.sqrt(SIDE) * S, 1 - SIDE
    messages.iterate(np.array([[0.7]]))
    i, mu = 3, 2
    b = 0.0
    for nu in range(5):
        if nu != mu:
            omega = sum(X[nu, :, j] * w[j] for j in range(dim) if j != i) / np.sqrt(dim)
            g = (z[nu] * np.tanh(z[nu] @ omega / v) - omega) / v
            b += X[nu, :, i] @ g / np.sqrt(dim)
    expected = (b + np.sqrt(SIDE) / v * S[i]) / (1 / v + 0.7)
    assert abs(messages.w[mu, 0, i] - expected) < 1e-6  # data are in single precision
    assert abs(messages.V[0, 0] - 1 / (1 / v + 0.7)) < 1e-12


@pytest.mark.slow
def test_runs_share_the_data_of_message_passing():
    problem = BayesOptimal(ONE_LAYER, side_information=SIDE)
    options = {"alpha": ALPHA, "dim": 150, "seeds": 2, "progress": False}
    slow = simulate(problem, RelaxedBP(iterations=4, variances="empirical"), **options)
    fast = simulate(problem, GAMP(iterations=4, variances="empirical"), **options)
    difference = abs(slow.overlap_trace - fast.overlap_trace).values
    assert difference.max() < 2 / np.sqrt(150)
    # Four iterations are not enough, and both say so.
    assert (slow.status_code.values == "not_converged").all()
    begins = "not converged: the overlap still moves by"
    assert [str(words).startswith(begins) for words in slow.status.values] == [True, True]
    assert (fast.status_code.values == "not_converged").all()
    assert np.isfinite(slow.test_error.values).all()


def test_bad_input_is_refused():
    problem = BayesOptimal(ONE_LAYER, side_information=SIDE)
    with pytest.raises(TypeError, match="ToyLearning"):
        RelaxedBP().check(ToyLearning(ToyRegression()))
    with pytest.raises(ValueError, match="side_information"):
        RelaxedBP().check(BayesOptimal(ONE_LAYER))
    with pytest.raises(ValueError, match="variances"):
        RelaxedBP(variances="exact")
    with pytest.raises(ValueError, match="dim must be from 2 to 300"):
        simulate(problem, RelaxedBP(), alpha=ALPHA, dim=1000, seeds=1, progress=False)
