"""What the numbers of results mean: thresholds, files of earlier versions, and names that theories share.

That every result of every public problem and algorithm is defined is one of the questions that all cases are asked.
"""

import pytest

import asymptotix as asx
from asymptotix.core.problem import definitions
from protocol.cases import CASES, THEORIES
from protocol.questions import is_defined, undocumented
from protocol.test_old_files import GONE, SAVED, read

#: One of every theory, those that are fast.
WITH_THRESHOLDS = {
    "one layer": asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2)),
    "Bayes-optimal attention": asx.BayesOptimal(asx.AttentionIndex()),
    "training": asx.RiskMinimization(asx.AttentionIndex(noise=0.5)),
}


@pytest.mark.parametrize("name", WITH_THRESHOLDS)
def test_thresholds_are_defined_and_documented(name):
    found = asx.thresholds(WITH_THRESHOLDS[name], progress=False)
    is_defined(found)
    assert undocumented(found, asx.thresholds.__doc__) == set()
    gap = found.ds.get("exact_recovery_gap")
    assert gap is None or "flag, no width" in gap.attrs["description"]


@pytest.mark.parametrize("name", sorted(set(SAVED) - {"theory_link"}))  # whose function takes seconds to be known
def test_old_files_get_their_attributes_when_they_are_read(name):
    is_defined(read(name), gone=GONE)


def test_one_name_means_what_its_theory_says():
    training, deep = (definitions(THEORIES[name].problem) for name in ("training", "one layer"))
    assert training["alpha"].formula == "alpha = n/d^2"
    assert deep["alpha"].formula == "alpha = n/D"
    assert "eigenvalues" in training["rank"].description
    assert "rows" in deep["rank"].description


def test_symbols_can_be_drawn():
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("agg")
    tables = [definitions(case.problem, case.algorithm) for case in CASES.values()]
    for symbol in {entry.symbol for found in tables for entry in found.values() if entry.symbol}:
        parser.parse(f"${symbol}$")  # raises where it is no mathematics
