"""Random streams of this theory: a name and numbers for every draw from a run's seed or from a fixed seed."""

# -- keys of samples: folded into the key of a run's seed, after dim and the number of samples

#: Training data: tokens and label noise, or the Gaussian sensing matrices of message passing.
TRAINING = 0
#: New samples on which test errors are measured: tokens and label noise.
FRESH = 1

# -- fixed seeds

#: Scramblings of the Sobol nodes on which a loss is averaged. The spread of the averages is the numerical error.
NODE_SCRAMBLINGS = (0, 1, 2, 3)
#: Scrambling of the Sobol draws from the posterior of a new sample's pre-activation.
POSTERIOR_DRAWS = 1
#: Matrices on which the user's loss function is tried.
TRIAL_MATRICES = 2


# -- seeds of NumPy generators


def initial_weights(seed: int, dim: int, samples: int) -> list[int]:
    """Return the NumPy seed of Adam's initial weights in the run ``seed`` at dimension d and n = ``samples``."""
    return [seed, dim, samples]


def sensing_noise(seed: int, dim: int, samples: int) -> list[int]:
    """Return the NumPy seed of the label noise of Gaussian sensing; Adam's weights share it, as no run draws both."""
    return [seed, dim, samples]


def fresh_coordinates(seed: int) -> int:
    """Return the Sobol scrambling, the run's seed, of the new samples for the test errors of Gaussian sensing."""
    return seed
