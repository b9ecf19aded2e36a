"""Random streams of attention paths: what is drawn from which seed."""

from __future__ import annotations


def chain_entropy(seed: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Of one chain of the sampler: its start and its key, from its seed and all widths N_1..N_L, N_a.

    The space that is sampled, the temperature and the data are not part of it: chains of one seed start alike.
    """
    return (seed, *widths)


#: What one seed of training is used for.
_START, _BATCHES = 0, 1


def training_start(seed: int) -> tuple[int, ...]:
    """Of the weights before the first step of training."""
    return (seed, _START)


def training_batches(seed: int) -> tuple[int, ...]:
    """Of the batches of training: their key, with which the number of the step is folded."""
    return (seed, _BATCHES)
