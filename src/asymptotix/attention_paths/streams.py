"""Random streams of attention paths: the numbers that seed each generator."""

from __future__ import annotations


def chain_entropy(seed: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the entropy of a sampler chain's start and key: the chain's seed and all widths N_1..N_L, N_a.

    Chains of one seed start alike: the sampled space, the temperature and the data do not enter.
    """
    return (seed, *widths)


#: Labels of the two streams of one training seed.
_START, _BATCHES = 0, 1


def training_start(seed: int) -> tuple[int, ...]:
    """Return the entropy of the weights before the first training step."""
    return (seed, _START)


def training_batches(seed: int) -> tuple[int, ...]:
    """Return the entropy of the training batches' key; the number of the step is folded into that key."""
    return (seed, _BATCHES)
