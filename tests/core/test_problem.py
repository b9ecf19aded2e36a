"""What a point gave, as a theory says it."""

import pytest

from asymptotix.core.problem import Outcome
from asymptotix.core.status import Status


def test_a_sentence_stands_for_a_status():
    assert Outcome({}, "converged").how is Status.CONVERGED
    outcome = Outcome({}, "still moving", converged=False)
    assert outcome.how is Status.NOT_CONVERGED
    assert outcome.sentence == "still moving"


@pytest.mark.parametrize("status", [None, 0, True, ("converged",)])
def test_a_status_is_a_value_or_a_sentence(status):
    with pytest.raises(TypeError, match="status must be a Status or a sentence, got"):
        Outcome({}, status)


def test_converged_must_agree_with_the_status():
    with pytest.raises(ValueError, match=r"converged must be left out, or be what .* says, got True"):
        Outcome({}, Status.FAILED, converged=True)


def test_whatever_is_not_well_says_what_to_do():
    assert all(bool(status.advice) == (not status.converged) for status in Status)


def test_advice_is_for_the_kind_of_work():
    theory, experiment = (Status.NOT_CONVERGED.advice_for(kind) for kind in ("theory", "experiment"))
    assert "start=" in theory
    assert "dim" not in theory
    assert "dim" in experiment
    assert "start=" not in experiment
    assert Status.AT_BOUND.advice_for("theory") == Status.AT_BOUND.advice
