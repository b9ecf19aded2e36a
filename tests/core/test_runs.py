"""The runs of an algorithm at the points of a grid: numbers of samples, and what is refused before the first run."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import asymptotix as asx
from asymptotix.core.problem import Outcome
from asymptotix.core.runs import AlgorithmOnSamples, PointRuns
from toy import ToyLearning, ToyRegression


@dataclass(frozen=True)
class CountingSamples(AlgorithmOnSamples):
    """Says how many samples a run has, and fails the test where one is begun that should not be."""

    may_run: bool = True
    largest: int = 10**6

    def check_size(self, problem: Any, runs: PointRuns) -> None:
        if runs.samples > self.largest:
            raise MemoryError(f"{runs.samples} samples ({runs.label})")

    def run_point(self, problem: Any, runs: PointRuns, progress: Any) -> Iterator[tuple[int, Outcome]]:
        assert self.may_run
        for k in range(len(runs.seeds)):
            yield k, Outcome({"samples": runs.samples})


def counted(alpha: Any, algorithm: AlgorithmOnSamples | None = None, **options: Any) -> asx.Result:
    settings = {"dim": 10, "seeds": 1, "progress": False} | options
    return asx.simulate(ToyLearning(ToyRegression()), algorithm or CountingSamples(), alpha=alpha, **settings)


def test_samples_are_rounded():
    assert counted([0.06, 0.24, 1.0]).samples.values.ravel().tolist() == [1, 2, 10]


@pytest.mark.parametrize("alpha", [0.01, [1.0, 0.05], [0.04, 2.0]])
def test_a_point_without_samples_is_refused_before_any_run(alpha):
    with pytest.raises(ValueError, match=r"alpha must give a sample at least, got alpha=0.0\d, .* is alpha=0.1"):
        counted(alpha, CountingSamples(may_run=False))


def test_a_size_is_refused_before_any_run_of_any_dim():
    with pytest.raises(MemoryError, match="3000 samples"):
        counted([1.0, 3.0], CountingSamples(may_run=False, largest=2000), dim=[10, 1000])


def test_alphas_of_the_same_runs_are_named():
    with pytest.warns(UserWarning, match="alpha = 0.11, 0.12 all give 1 samples at dim=10: their runs are the same"):
        counted([0.11, 0.12, 0.3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counted([0.11, 0.2, 0.3])


def test_an_argument_of_the_verb_is_told_from_one_of_the_algorithm():
    with pytest.raises(TypeError, match=r"CountingSamples takes may_run, largest, got dim; dim belongs to simulate"):
        CountingSamples(dim=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"CountingSamples takes may_run, largest, got colour$"):
        CountingSamples(colour=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the class CountingSamples, not an instance"):
        counted(1.0, CountingSamples)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (asx.GAMP(), asx.BayesOptimal(asx.DeepAttention(1, 2))),
        (asx.SGD(), asx.BayesOptimal(asx.DeepAttention(1, 2))),
        (asx.Adam(), asx.RiskMinimization(asx.AttentionIndex(noise=0.5, activation="linear"))),
        (asx.MatrixAMP(), asx.RiskMinimization(asx.AttentionIndex(noise=0.5, activation="linear"))),
        (asx.MatrixAMP(sensing="tokens"), asx.RiskMinimization(asx.AttentionIndex(noise=0.5, activation="linear"))),
    ],
    ids=["GAMP", "SGD", "Adam", "MatrixAMP", "MatrixAMP of tokens"],
)
@pytest.mark.parametrize(("dim", "alpha"), [(10**9, 1.0), (10**18, 1.0), (8, 1e12)])
def test_sizes_that_no_machine_holds_are_refused_with_the_estimate(algorithm, problem, dim, alpha):
    with pytest.raises(MemoryError, match=r"takes (.* GiB|far more than any machine has), and there are"):
        asx.simulate(problem, algorithm, alpha=[1.0, alpha] if alpha > 1 else alpha, dim=dim, seeds=2, progress=False)


def test_too_few_dimensions_are_refused():
    with pytest.raises(ValueError, match="dim must be at least 2 for message passing on this model, got 1"):
        asx.simulate(asx.BayesOptimal(asx.DeepAttention(1, 2)), asx.GAMP(), alpha=2.0, dim=1, seeds=1)
