"""Every public algorithm is asked the same questions."""

import pytest

from protocol import questions
from protocol.cases import EXPERIMENTS, asked

pytestmark = pytest.mark.parametrize("name", asked(EXPERIMENTS))


def test_result(name):
    questions.returns_what_it_promises(EXPERIMENTS[name])


def test_definitions(name):
    questions.defines_its_numbers(EXPERIMENTS[name])


def test_file(name, tmp_path):
    questions.survives_a_file(EXPERIMENTS[name], tmp_path)


def test_interrupt(name):
    questions.goes_on_after_an_interrupt(EXPERIMENTS[name])


def test_batch(name):
    questions.does_not_depend_on_the_rest_of_the_call(EXPERIMENTS[name])


def test_bad_controls(name):
    questions.refuses_bad_controls(EXPERIMENTS[name])


def test_sweep(name):
    questions.can_be_swept(EXPERIMENTS[name])
