"""Random streams of this theory: what is drawn from a run's seed, or from a fixed one, has a name and numbers here."""

# -- keys of samples: folded, after dim and the number of samples, into the key of a run's seed

#: Data that are learned from: tokens and label noise, or the Gaussian sensing matrices of message passing.
TRAINING = 0
#: New samples on which test errors are measured: tokens and label noise.
FRESH = 1

# -- fixed seeds

#: Scramblings of the Sobol nodes on which a loss is averaged; their spread is the numerical error.
NODE_SCRAMBLINGS = (0, 1, 2, 3)
#: Scrambling of the Sobol draws from the posterior of the pre-activation of a new sample.
POSTERIOR_DRAWS = 1
#: Matrices on which a loss of the user's own is tried.
TRIAL_MATRICES = 2


# -- seeds of NumPy generators


def initial_weights(seed: int, dim: int, samples: int) -> list[int]:
    """The weights from which Adam starts."""
    return [seed, dim, samples]


def sensing_noise(seed: int, dim: int, samples: int) -> list[int]:
    """Label noise on what Gaussian matrices measure. Adam draws none: the numbers may be those of its weights."""
    return [seed, dim, samples]


def fresh_coordinates(seed: int) -> int:
    """Scrambling of the Sobol points from which new samples of Gaussian matrices come, given what was learned."""
    return seed
