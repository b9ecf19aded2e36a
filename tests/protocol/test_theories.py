"""Every public problem and model is asked the same questions."""

import pytest

from protocol import questions
from protocol.cases import THEORIES, asked

pytestmark = pytest.mark.parametrize("name", asked(THEORIES))


def test_result(name):
    questions.returns_what_it_promises(THEORIES[name])


def test_definitions(name):
    questions.defines_its_numbers(THEORIES[name])


def test_file(name, tmp_path):
    questions.survives_a_file(THEORIES[name], tmp_path)


def test_interrupt(name):
    questions.goes_on_after_an_interrupt(THEORIES[name])


def test_batch(name):
    questions.does_not_depend_on_the_rest_of_the_call(THEORIES[name])


def test_bad_controls(name):
    questions.refuses_bad_controls(THEORIES[name])


def test_sweep(name):
    questions.can_be_swept(THEORIES[name])
