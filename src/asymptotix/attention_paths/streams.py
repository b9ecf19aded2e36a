"""Random streams of attention paths: the numbers that seed each generator."""

from __future__ import annotations


def chain_entropy(seed: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the seed of a sampler chain's start and random key: the chain's number and all widths N_1..N_L, N_a.

    Chains of one seed start alike: the sampled space, the temperature and the data do not enter.
    """
    return (seed, *widths)


#: Labels of the two streams of one training seed.
_START, _BATCHES = 0, 1


def training_start(seed: int) -> tuple[int, ...]:
    """Return the seed of the random generator that draws the weights before the first training step."""
    return (seed, _START)


def training_batches(seed: int) -> tuple[int, ...]:
    """Return the seed of the random key of the training batches; the number of the step is folded into that key."""
    return (seed, _BATCHES)
