"""The random streams of this theory: the number of every stream, and the draws taken from it.

A stream is named by the integers that seed its generator. Draws of a run are seeded by the run's coordinates (seed,
dim, samples), so that they do not depend on other runs. Nodes of averages are seeded by a fixed number, so that every
call uses the same nodes. NumPy pads short seeds with zeros: (s,) and (s, 0) are one stream. If a stream occurs twice
below, the draws of the two uses need not be independent of each other.
"""

# -- nodes of averages: scrambled Sobol points of the seed (number, r), r counting the randomisations ----------------

#: Indices and noise of the fields in state evolution and in the curvature at zero overlap. The number is one larger for
#: a single randomisation, and two larger for every independent repetition.
STATE_EVOLUTION_NODES = 0
#: Indices and noise of the fields in the plan of a message-passing run, for its prescribed variances.
PLAN_NODES = 5
#: Indices and posteriors for the theory of a spectral start.
SPECTRAL_NODES = 6
#: Fields and two posterior draws in the prediction errors of theory.
PREDICTION_NODES = 7
#: Indices whose outputs are tabulated if the instability of zero overlap depends on one number only.
INSTABILITY_OUTPUTS = 11
#: Indices and noise that are sorted by their output if it is one number.
SORTED_OUTPUTS = 23
#: Fields (number, r) and three lists of draws (number, r, 1 to 3) that are sorted by their output at any overlap, and
#: cuts of trees (number, block, part) if the output is several numbers. The number is one larger for a single
#: randomisation, and two larger for every independent repetition, up to fifty.
SORTED_FIELDS = 43
#: Independent indices and noise (number, r) of the outputs whose entropy is computed.
OUTPUT_ENTROPY = 151
#: Indices whose outputs enter the curvature of deep attention at zero overlap.
DEEP_AT_ZERO_OUTPUTS = 17
#: Two independent lists of early indices, from which posteriors at those outputs are computed.
DEEP_AT_ZERO_LISTS = (18, 19)

# -- nodes of averages: scrambled Sobol points of the seed number ----------------------------------------------------

#: Fields of an estimate and of its teacher on fresh data.
FRESH_FIELDS = 11
#: Posterior draws around the fields of the estimate.
FRESH_POSTERIOR = 12
#: Index matrices over which one layer of infinitely deep attention is averaged.
INFINITE_DEPTH_NODES = 13
#: Fields and outputs at which a channel is tested for sign changes of an index that the output does not show.
SIGN_CHANGES = 24

# -- channels ---------------------------------------------------------------------------------------------------------

#: Two independent lists of draws, for posteriors computed from draws.
POSTERIOR_LISTS = (0, 1)
#: Normals (number, list) that the posteriors of deep attention share.
DEEP_CHANNEL_NORMALS = 29
#: Rotations, shifts and choices (number, list, block of samples) that make a sample's own draws from shared normals.
DEEP_CHANNEL_ROTATIONS = 31
#: Index matrices at which a link is evaluated when a model is described.
LINK_TRIAL = 0
#: Indices at which the origin and the unit of outputs are measured.
LINK_UNITS = 26
#: Indices (number, r) at which the volumes of outputs are averaged.
OUTPUT_VOLUMES = 27
#: Indices at which the kind of a link is examined.
LINK_PROBES = 1
#: Lines of indices along which jumps of a discrete link are counted.
LINK_LINES = 25
#: Index matrices for finding the index rows on which an output depends.
LINK_DEPENDENCE = 7
#: Index matrices for finding the tokens on which an output depends, and indices at which tokens are compared.
LINK_TOKENS = 28
#: Index matrices for finding rows that may be exchanged.
ROW_SYMMETRY = 9
#: Index matrices at which a link is tested for being even.
EVEN_LINK = 10
#: Index matrices and noise that show along which axes the outputs of a link vary.
OUTPUT_AXES = 12
#: Indices at which the differentials of a link show which directions are recovered last.
LINK_DIFFERENTIALS = 14
#: Starts of the search for the critical points of a link.
CRITICAL_POINT_STARTS = 3
#: Starts of the search for the roots of a link.
ROOT_STARTS = 5
#: Key ("nois") into which the bits of an index matrix are folded to give the noise of its observation.
HASHED_NOISE = 0x6E6F6973

# -- runs -------------------------------------------------------------------------------------------------------------


def data_of_run(seed: int, samples: int, dim: int) -> list[int]:
    """Return the seed of a run's generator for the tokens' key, the teacher and the noise of the side information."""
    return [seed, samples, dim]


def noise_of_run(seed: int, samples: int, dim: int) -> list[int]:
    """Return the seed of a run's generator for the noise of the observations."""
    return [seed, samples, dim, 2]


def random_start_of_run(seed: int, dim: int) -> list[int]:
    """Return the seed of a run's generator for the weights of a random start of message passing."""
    return [seed, dim, 1]


def spectral_start_of_run(seed: int, dim: int) -> list[int]:
    """Return the seed of a run's generator for first Lanczos vectors, then for combinations of the eigenvectors."""
    return [seed, dim]


def gradient_start_of_run(seed: int, samples: int, dim: int) -> list[int]:
    """Return the seed of a run's generator for the weights at which gradient descent starts."""
    return [seed, dim, samples, 2]


def classifier_start_of_run(seed: int) -> list[int]:
    """Return the seed of a run's generator for the weights at which a classifier's training starts."""
    return [seed, 37]


def batches_of_run(seed: int, epoch: int) -> list[int]:
    """Return the seed of the generator for the order of the examples in one epoch of a classifier's training."""
    return [seed, 41, epoch]
