"""Random streams of attention paths: what is drawn from which seed."""

from __future__ import annotations


def chain_entropy(seed: int, widths: tuple[int, ...]) -> tuple[int, ...]:
    """Of one chain of the sampler: its start and its key, from its seed and all widths N_1..N_L, N_a.

    The space that is sampled, the temperature and the data are not part of it: chains of one seed start alike.
    """
    return (seed, *widths)
