"""Targets with spikes: moments, finite-size eigenvalues, and what is refused."""

import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.specification import build, describe

MP = asx.MarchenkoPastur(0.5)


def test_spikes_of_weight_zero_leave_the_law_as_it_is() -> None:
    target = asx.Spiked(MP, (6.0, 9.0))
    for name in ("mean", "mean_square", "zero_mass", "smallest", "largest"):
        assert getattr(target, name) == getattr(MP, name)
    assert target.spikes == (9.0, 6.0)
    assert target.convolution(0.7).moments(0.3) == MP.convolution(0.7).moments(0.3)


def test_spikes_of_a_finite_dimension_have_their_weight() -> None:
    target = asx.Spiked(MP, (6.0, 9.0), dim=1000)
    drawn = target.eigenvalues(1000)
    assert target.spike_weight == 1e-3
    # quantiles of the bulk are right to O(1/d)
    assert target.mean == pytest.approx(drawn.mean(), rel=1e-3)
    assert target.mean_square == pytest.approx(np.mean(drawn**2), rel=1e-3)
    assert target.zero_mass == pytest.approx(np.mean(drawn == 0))
    assert target.largest == 9.0


def test_eigenvalues_hold_the_spikes_exactly_and_are_not_rescaled() -> None:
    drawn = asx.Spiked(MP, (6.0, 9.0)).eigenvalues(100)
    assert drawn[-2:].tolist() == [6.0, 9.0]
    assert (drawn == 0).sum() == 49
    assert drawn[49:-2] == pytest.approx(MP.quantiles(98)[49:])
    assert asx.Spiked(None, (2.0,)).eigenvalues(3).tolist() == [0.0, 0.0, 2.0]


def test_weights_of_all_parts_sum_to_one() -> None:
    for target in (asx.Spiked(MP, (6.0, 6.0), dim=50), asx.Spiked(None, (1.0,), dim=4), asx.Spiked(MP, (0.1,))):
        assert sum(part.island_masses.sum() for part in target.parts()) == pytest.approx(1.0)


@pytest.mark.parametrize(("bulk", "spikes"), [(None, (2.0,)), (MP, (6.0, 9.0)), (MP, (6.0, 6.0))])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_spikes_may_be_all_there_is(bulk: asx.Target | None, spikes: tuple[float, ...]) -> None:
    dim = len(spikes)
    target = asx.Spiked(bulk, spikes, dim=dim)
    law = asx.Empirical(target.eigenvalues(dim))
    for name in ("mean", "mean_square", "zero_mass", "smallest", "largest"):
        assert getattr(target, name) == pytest.approx(getattr(law, name))
    assert target.convolution(0.7).moments(0.3) == pytest.approx(law.convolution(0.7).moments(0.3))


def test_description_is_rebuilt() -> None:
    for target in (asx.Spiked(MP, (6.0,), dim=30), asx.Spiked(None, (1.0, 1.0))):
        assert build(describe(target)) == target


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.5, (6.0,)), "bulk must be a Target"),
        ((asx.Spiked(MP, (6.0,)), (7.0,)), "bulk must have no spikes of its own"),
        ((MP, ()), "spikes must be a number or a non-empty"),
        ((MP, (6.0, -1.0)), "spikes must be positive"),
        ((MP, (0.0,)), "spikes must be positive"),
        ((MP, (6.0, 1.0)), r"spikes must lie outside the support of the bulk, got 1, inside \[0.1213, 4.121\]"),
        ((asx.Atoms((0.0, 1.0)), (1.0,)), "got 1, inside its eigenvalue 1"),
        ((MP, (6.0, 7.0), 1), "dim must be"),
        ((MP, (6.0,), 2.5), "dim must be"),
    ],
)
def test_what_is_refused(arguments: tuple, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        asx.Spiked(*arguments)


def test_another_size_than_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="dim must be 100, for which the target gives its spikes their weight, got 60"):
        asx.Spiked(MP, (6.0,), dim=100).eigenvalues(60)


def test_a_zero_bulk_needs_a_scale() -> None:
    with pytest.raises(ValueError, match="noise must be positive where the target is spikes of weight zero"):
        asx.AttentionIndex(2, asx.Spiked(None, (2.0,)))
    assert asx.AttentionIndex(2, asx.Spiked(None, (2.0,), dim=10)).signal == pytest.approx(0.4)
