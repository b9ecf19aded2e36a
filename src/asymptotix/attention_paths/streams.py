"""Random streams of attention paths: the tuples of integers that seed each random generator."""

from __future__ import annotations


def chain_entropy(seed: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Return (seed, N_1, ..., N_L, N_a), which seeds the generator of a sampler chain's start and random key.

    The sampled space, the temperature and the data do not enter: chains of equal seed and widths start alike.
    """
    return (seed, *widths)


#: Labels that distinguish the two random streams of one training seed: initial weights, and batches.
_START, _BATCHES = 0, 1


def training_start(seed: int) -> tuple[int, ...]:
    """Return (seed, label), which seeds the generator of the weights before the first training step."""
    return (seed, _START)


def training_batches(seed: int) -> tuple[int, ...]:
    """Return (seed, label), which seeds the key of the training batches; each step folds its number into the key."""
    return (seed, _BATCHES)
