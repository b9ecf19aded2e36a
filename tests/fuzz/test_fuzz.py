"""A thousand random calls of the public names: none ends in a raw traceback, a hang or numbers that are none."""

import pytest

from fuzz.fuzzer import campaign, table

SEED = 20


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_random_calls(part):
    faults = []
    verdicts = campaign(250, SEED, faults.append, first=250 * part)
    assert not faults, "\n".join([*map(str, faults), table(verdicts)])
    assert {verdict.outcome for verdict in verdicts} == {"refused", "accepted"}  # both kinds of call are made
