"""Classification of hidden Markov chains by their flip rate, with hand-made attention heads.

A chain of states q_t in {+, -} starts from a fair coin and flips with probability flip[0] if its label is +1, and
flip[1] if it is -1. The network sees noisy features of the states,

    x_t = (v_{q_t} + noise, e_t),      v_+ = sqrt(2) on the first 100 coordinates,  v_- = sqrt(2) on the last 100,

where e_t is the one-hot position. Token 0 (bos) has no features and no noise, only its position.

Tiberi et al., arXiv:2405.15926, section 4.1 and appendix G. Where text and released code differ we follow the code: the
good head compares a token with the previous one (the text has the next one), and hand-made scores x_s^T W x_t have no
further 1/(N0 sqrt(G)). The exception is the token that is read: the first one by default, as in the text, while the
released script reads the last one; ``readout`` offers both. Over seeds 0 to 7, with 100 examples at temperature 0.01,
the accuracy of the Gaussian process is 0.848 ± 0.007 with the first token and 0.835 ± 0.006 with the last one (standard
errors). The accuracy of the network of width 10 is 0.956 ± 0.002 and 0.956 ± 0.004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..attention_paths.network.path_network import AttentionPaths
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory

#: Streams of the task's seed.
_TRAINING_CHAINS, _TEST_CHAINS, _RANDOM_HEADS = 1, 2, 3

#: Position of the token that is read: the paper's text reads the first token, its script the last one.
_READOUTS = {"first": 0, "last": -1}

_FEATURES = 200
_V_PLUS = np.repeat([np.sqrt(2.0), 0.0], _FEATURES // 2)
_V_MINUS = np.repeat([0.0, np.sqrt(2.0)], _FEATURES // 2)


@dataclass(frozen=True, eq=False)
class HiddenMarkovTask:
    """Network and data of the hidden-Markov task.

    Attributes
    ----------
    network : AttentionPaths
        Two layers. Heads (2, 2), or (2, 1) with ``two_paths``; the first head of each layer is the good one.
    inputs : array (examples, length + 1, 200 + length + 1)
        Training tokens, bos first; the examples of label +1 come before those of label -1.
    labels : array (examples,)
        +1 or -1.
    test_inputs, test_labels
        Tokens and labels of independent chains, in the same format.
    """

    network: AttentionPaths
    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray


def hidden_markov(
    examples: int = 100,
    test_examples: int = 1000,
    seed: int = 0,
    *,
    length: int = 30,
    noise_parallel: float = 1.0,
    noise_perpendicular: float = 1.0,
    readout: int | str = 0,
    two_paths: bool = False,
    second_head: str = "random",
    beta: float = 10.0,
    flip: Sequence[float] = (0.3, 0.7),
) -> HiddenMarkovTask:
    """Make the hidden-Markov task: chains to be classified by their flip rate.

    The good head of layer 1 compares a token with its predecessor. The good head of layer 2 averages over all tokens.
    The path through both measures the flip rate. The second heads are random: of the other paths, one helps to denoise
    (random, then uniform), and two mislead.

    Parameters
    ----------
    examples, test_examples : int
        Number of chains, half of each label; an odd number has one more of label +1.
    seed : int
        Seed, with independent streams for training chains, test chains and random heads.
    length : int
        Number of states per chain, without bos.
    noise_parallel, noise_perpendicular : float
        Standard deviation per coordinate of the Gaussian noise, inside and outside the span of v_+ and v_-.
    readout : int, "first", "last" or "mean"
        Token that is read, or the average over all tokens. "first" is token 0, bos, as in the text of the paper; "last"
        is token -1, the last state, as in the authors' released script.
    two_paths : bool
        Whether to leave out the random head of layer 2.
    second_head : "random" or "uniform"
        Second head of layer 1; "uniform" attends to all tokens equally.
    beta : float
        Scale of all scores.
    flip : pair of float
        Flip probabilities of the chains labelled +1 and -1.
    """
    length = checks.integer("length", length, 2)
    sds = (
        float(checks.non_negative("noise_parallel", noise_parallel)),
        float(checks.non_negative("noise_perpendicular", noise_perpendicular)),
    )
    scale = float(checks.non_negative("beta", beta))
    rates = _flip_rates(flip)
    seed = checks.integer("seed", seed, 0)
    checks.one_of("two_paths", two_paths, (False, True))
    checks.one_of("second_head", second_head, ("random", "uniform"))
    if isinstance(readout, str):
        checks.one_of("readout", readout, (*_READOUTS, "mean"))
        readout = _READOUTS.get(readout, readout)
    elif not -length - 1 <= checks.integer("readout", readout) <= length:
        accepted = f"'first', 'last', 'mean' or a token from {-length - 1} to {length}"
        raise ValueError(f"readout must be {accepted}, got {readout}")
    count, test_count = checks.integer("examples", examples, 2), checks.integer("test_examples", test_examples, 2)
    features = _FEATURES + length + 1
    # Tokens, their noise and a copy of it; two layers of two heads.
    needed = 8 * (3 * (count + test_count) * (length + 1) * features + 10 * features**2)
    what = f"{count} + {test_count} chains of {length} states"
    refuse_beyond_memory(needed, what, "fewer examples or a shorter length")

    first, second = _heads(np.random.default_rng([seed, _RANDOM_HEADS]), length, scale)
    if second_head == "uniform":
        first[1] = 0.0
    network = AttentionPaths(query_key=(first, second[:1] if two_paths else second), readout=readout)
    train = _chains(np.random.default_rng([seed, _TRAINING_CHAINS]), count, length, rates, sds)
    test = _chains(np.random.default_rng([seed, _TEST_CHAINS]), test_count, length, rates, sds)
    return HiddenMarkovTask(network, *train, *test)


def _chains(
    rng: np.random.Generator, count: int, length: int, rates: tuple[float, float], sds: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens (count, length + 1, 200 + length + 1) and labels (count,) of fresh chains.

    ``rates`` are the flip probabilities for labels +1 and -1, ``sds`` the deviations of the noise inside and outside
    the span of v_+ and v_-.
    """
    labels = np.where(np.arange(count) < (count + 1) // 2, 1.0, -1.0)
    rate = np.where(labels > 0, *rates)
    plus = np.empty((count, length), dtype=bool)
    plus[:, 0] = rng.integers(0, 2, count)
    for t in range(1, length):
        plus[:, t] = plus[:, t - 1] ^ (rng.random(count) < rate)
    tokens = np.zeros((count, length + 1, _FEATURES + length + 1))
    tokens[:, 1:, :_FEATURES] = np.where(plus[..., None], _V_PLUS, _V_MINUS) + _noise(rng, count, length, sds)
    tokens[:, :, _FEATURES:] = np.eye(length + 1)
    return tokens, labels


def _noise(rng: np.random.Generator, count: int, length: int, sds: tuple[float, float]) -> np.ndarray:
    noise = rng.standard_normal((count, _FEATURES, length)).transpose(0, 2, 1)
    span = np.stack([_V_PLUS, _V_MINUS], axis=1) / np.sqrt(_FEATURES)  # orthonormal: |v|^2 = 200 and v_+ . v_- = 0
    return sds[1] * noise + (sds[0] - sds[1]) * (noise @ span) @ span.T


def _heads(rng: np.random.Generator, length: int, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the query-key matrices of layers 1 and 2, (2, N0, N0) each with N0 = 200 + length + 1: good, random."""
    positions = length + 1
    direction = (_V_PLUS - _V_MINUS) / _FEATURES
    place = np.eye(positions, k=1)  # rows are keys: 1 at the token before the query
    place[0, 1:] = 1.5  # between equal (2) and unequal (0) neighbours: without an equal one, attention goes to bos
    compare = _head(np.outer(direction, direction), place)
    average = _head(np.zeros((_FEATURES, _FEATURES)), np.ones((positions, positions)))
    random = [_random_head(rng, positions) for _ in range(2)]
    return beta * np.stack([compare, random[0]]), beta * np.stack([average, random[1]])


def _random_head(rng: np.random.Generator, positions: int) -> np.ndarray:
    features = rng.standard_normal((_FEATURES, _FEATURES)) / _FEATURES
    head = _head(features, rng.standard_normal((positions, positions)))
    head[:_FEATURES, _FEATURES:] = rng.standard_normal((_FEATURES, positions)) / np.sqrt(_FEATURES)
    head[_FEATURES:, :_FEATURES] = rng.standard_normal((positions, _FEATURES)) / np.sqrt(_FEATURES)
    return head


def _head(features: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the block-diagonal query-key matrix of ``features`` (200, 200) and ``positions`` (T, T), T tokens."""
    head = np.zeros((_FEATURES + len(positions),) * 2)
    head[:_FEATURES, :_FEATURES] = features
    head[_FEATURES:, _FEATURES:] = positions
    return head


def _flip_rates(flip: ArrayLike) -> tuple[float, float]:
    rates = checks.array_of_shape("flip", flip, (2,))
    for place, rate in enumerate(rates):
        checks.probability(f"flip[{place}]", rate, closed=True)
    return float(rates[0]), float(rates[1])
