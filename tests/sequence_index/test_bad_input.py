"""What a user may get wrong: the message names the argument, what was given and what is accepted."""

import numpy as np
import pytest

from asymptotix import BayesOptimal, ConvergenceWarning, DeepAttention, load, solve, thresholds
from asymptotix.sequence_index.evolution import dynamics

NAN, INF = float("nan"), float("inf")
PROBLEM = BayesOptimal(DeepAttention(layers=1, tokens=2))
TWO = DeepAttention(layers=2, tokens=2)


def model(**changes) -> DeepAttention:
    return DeepAttention(**{"layers": 2, "tokens": 2, **changes})


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        (0.0, "alpha must be positive, got 0.0"),
        (-0.3, "alpha must be positive, got -0.3"),
        ([0.5, -1.0], "alpha must be positive, got -1.0"),
        (NAN, "alpha must not contain nan"),
        ([0.1, NAN], "alpha must not contain nan"),
        (INF, "alpha must be finite"),
        ([], "alpha must be a number or a non-empty 1-D sequence"),
        ([[0.1, 0.2]], "alpha must be a number or a non-empty 1-D sequence"),
    ],
)
def test_alpha(alpha, message):
    with pytest.raises(ValueError, match=message):
        solve(PROBLEM, alpha=alpha)


@pytest.mark.parametrize("alpha", ["0.5", None, True, 0.5j])
def test_alpha_of_the_wrong_type(alpha):
    with pytest.raises(TypeError, match="alpha"):
        solve(PROBLEM, alpha=alpha)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skip": -0.1}, "skip must be non-negative, got -0.1"),
        ({"skip": NAN}, "skip must be non-negative, got nan"),
        ({"skip": INF}, "skip must be finite, got inf"),
        ({"tokens": 0}, "tokens must be an integer of at least 1, got 0"),
        ({"tokens": -2}, "tokens must be an integer of at least 1, got -2"),
        ({"tokens": 2.5}, "tokens must be an integer of at least 1, got 2.5"),
        ({"tokens": NAN}, "tokens must be an integer of at least 1, got nan"),
        ({"layers": 0}, "layers must be an integer of at least 1, got 0"),
        ({"heads": 0}, "heads must be an integer of at least 1, got 0"),
        ({"rank": 0}, "rank must be an integer of at least 1, got 0"),
        ({"rank": (1, 0)}, "rank must be an integer of at least 1, got 0"),
        ({"rank": (1, 1, 1)}, r"rank must be one integer or one per layer \(2\), got \(1, 1, 1\)"),
        ({"activation": "relu"}, "activation must be one of 'softmax', 'linear', got 'relu'"),
        ({"activation": None}, "activation must be one of 'softmax', 'linear', got None"),
        ({"output": "tokens"}, "output must be one of 'attention', 'sequence', got 'tokens'"),
    ],
)
def test_model(changes, message):
    with pytest.raises(ValueError, match=message):
        model(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"skip": "1"}, "skip"), ({"skip": True}, "skip"), ({"tokens": "2"}, "tokens"), ({"tied": 1}, "tied"),
     ({"last_skip": "no"}, "last_skip"), ({"layers": True}, "layers")],
)  # fmt: skip
def test_model_of_the_wrong_type(changes, name):
    with pytest.raises(TypeError, match=name):
        model(**changes)


def test_activation_that_jax_cannot_trace():
    with pytest.raises(ValueError, match=r"activation must be a function that JAX can trace.*TracerArrayConversion"):
        BayesOptimal(model(activation=np.tanh))


@pytest.mark.slow  # the rank of its differential is looked for first
def test_what_is_not_covered_says_what_is():
    with pytest.raises(NotImplementedError, match="covered are the output sequences of one layer, and"):
        BayesOptimal(model(layers=2, tokens=3, output="sequence"))


def test_one_token_attends_to_itself_only():
    with pytest.raises(ValueError, match="tokens must be at least 2 with softmax activation"):
        BayesOptimal(DeepAttention(layers=1, tokens=1))


@pytest.mark.parametrize("side", [-0.1, 1.0, 1.5, NAN])
def test_side_information_outside_its_range(side):
    with pytest.raises(ValueError, match=r"side_information must be in \[0, 1\), got"):
        BayesOptimal(TWO, side_information=side)


def test_model_that_is_none():
    with pytest.raises(TypeError, match="model must have a Bayes-optimal theory, as DeepAttention has"):
        BayesOptimal("attention")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "start",
    ["informd", [0.1, 0.2], 0.5, [[0.1, 0.2], [0.2, 0.1]], [1.0], [-0.1], [NAN]],
    ids=str,
)
def test_start(start):
    with pytest.raises(ValueError, match="start must"):
        solve(PROBLEM, alpha=0.3, start=start)


def test_start_with_correlated_indices():
    with pytest.raises(ValueError, match="overlaps of the 2 indices"):
        solve(BayesOptimal(TWO), alpha=0.3, start=[[0.5, 0.1], [0.1, 0.5]], progress=False)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, NAN])
def test_tolerance(tolerance):
    with pytest.raises(ValueError, match="tolerance must be positive"):
        solve(PROBLEM, alpha=0.3, tolerance=tolerance)


def test_misspelt_control_is_named_with_a_suggestion():
    with pytest.raises(TypeError, match=r"alhpa.*alpha"):
        solve(PROBLEM, alhpa=0.3)
    with pytest.raises(TypeError, match=r"skpi.*skip"):
        solve(PROBLEM, alpha=0.3, skpi=2.0)


def test_missing_control_is_named():
    with pytest.raises(TypeError, match="alpha"):
        solve(PROBLEM)


def test_field_grids_are_checked_like_the_fields():
    with pytest.raises(ValueError, match="skip must be non-negative"):
        solve(PROBLEM, alpha=0.3, skip=[1.0, -1.0])
    with pytest.raises(ValueError, match=r"side_information must be in \[0, 1\), got 1.0"):
        solve(PROBLEM, alpha=0.3, side_information=[0.5, 1.0])
    with pytest.raises(ValueError, match="layers must be an integer of at least 1, got 0"):
        solve(PROBLEM, alpha=0.3, layers=[1, 0])


def test_thresholds_take_no_alpha():
    with pytest.raises(TypeError, match="alpha"):
        thresholds(PROBLEM, alpha=0.3)


def test_truncated_file(tmp_path):
    path = tmp_path / "point.nc"
    solve(PROBLEM, alpha=0.3).save(path)
    whole = path.read_bytes()
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=r"point\.nc cannot be read as netCDF; it may be truncated"):
            load(path)


def test_point_that_does_not_converge_stays_with_its_status(monkeypatch):
    original = dynamics.fixed_point

    def impatient(*args, **options):
        return original(*args, **{**options, "max_steps": 2})

    monkeypatch.setattr(dynamics, "fixed_point", impatient)
    # Below the threshold there is nothing to iterate; above it, two steps are not enough.
    with pytest.warns(ConvergenceWarning, match="1 of 2 points did not converge") as caught:
        result = solve(PROBLEM, alpha=[0.1, 0.3])
    assert result.status.values[1].startswith("not converged after 2 steps")
    assert result.status.values[1] in str(caught[0].message)
    assert result.converged.values.tolist() == [True, False]
    assert not result.ok
    assert 0 < result.overlap.values[1].item() < 1  # where it had got to
    assert np.isnan(result.overlap_err.values[1]).all()  # how far from the end is not known
    assert result.overlap.values[0].item() == 0


def test_lost_samples_make_a_failed_point_not_a_wrong_one(monkeypatch):
    def lost(self, V):
        raise FloatingPointError("the channel lost 3 samples")

    monkeypatch.setattr("asymptotix.sequence_index.channels.attention.sign.SignAverager.__call__", lost)
    with pytest.warns(ConvergenceWarning, match="failed: the channel lost 3 samples"):
        result = solve(PROBLEM, alpha=0.3)
    assert not result.ok
    assert result.status.item() == "failed: the channel lost 3 samples"
