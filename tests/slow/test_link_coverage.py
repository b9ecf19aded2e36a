"""First thresholds of many links: their error bars cover what a quadrature of their own finds."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import link_quadrature as by
from asymptotix import BayesOptimal, MultiIndex, SequenceIndex, thresholds
from asymptotix.core.progress import quietly
from asymptotix.sequence_index.channels.choose import channel_of
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.evolution.sorting import sorted_outputs
from asymptotix.sequence_index.evolution.thresholds.staircase import first_step
from asymptotix.sequence_index.evolution.thresholds.threshold import Threshold

pytestmark = pytest.mark.slow

#: The tolerance of the verb unless told otherwise.
TOLERANCE = 1e-3


@cache
def made(how: Callable[[], MultiIndex | SequenceIndex]) -> MultiIndex | SequenceIndex:
    return how()


class Link(NamedTuple):
    """A model, made when first asked for, and what the quadrature says of it."""

    how: Callable[[], MultiIndex | SequenceIndex]
    answer: Callable[..., by.Answer]

    @property
    def model(self) -> MultiIndex | SequenceIndex:
        return made(self.how)

    @property
    def has_nodes(self) -> bool:
        """Whether the quadrature is more than a sum that is exact."""
        return "finer" in inspect.signature(self.answer).parameters

    def alpha(self, finer: int = 1) -> float:
        more = {"finer": finer} if self.has_nodes else {}
        return 1 / by.growth_rate(self.answer(**more), self.model.indices, self.model.tokens)


def added(*laws: by.Law):
    """Without noise, the sum of laws."""

    def answer(finer: int = 1) -> by.Answer:
        law = laws[0]
        for other in laws[1:]:
            law = by.total(law, other, finer=finer)
        return by.without_noise(law, finer=finer)

    return answer


def multiplied(*laws: by.Law):
    def answer(finer: int = 1) -> by.Answer:
        law = laws[0]
        for other in laws[1:]:
            law = by.product(law, other, finer=finer)
        return by.without_noise(law, finer=finer)

    return answer


def subtracted(one: by.Law, other: by.Law, noise: float = 0.0, largest: float = 0.0):
    def answer(finer: int = 1) -> by.Answer:
        law = by.difference(one, other, finer=finer)
        return by.with_noise(law, noise, largest, finer=finer) if noise else by.without_noise(law, finer=finer)

    return answer


def blurred(law: by.Law, noise: float, largest: float):
    return partial(by.with_noise, law, noise, largest)


def squares(*factors: float):
    """The link to a sum of squares with factors."""
    return lambda z: (jnp.array(factors) * z**2).sum()


def four_squares(finer: int = 1) -> by.Answer:
    """Squares with factors 1, 2, 3, 4, two by two."""
    pairs = (by.total(by.square(a), by.square(a + 2), finer=finer) for a in (1.0, 2.0))
    answer = by.without_noise(by.total(*pairs, finer=finer), finer=finer)
    order = [0, 2, 1, 3]
    return by.Answer(answer.weight, answer.G[:, order][:, :, order])


def norm(z):
    return (z**2).sum()


def largest(z):
    return abs(z).max()


def large_ones(z):
    return jnp.sign(abs(z) - 0.7).sum()


#: Half of (a^2 - b^2), a and b rotated by 45 degrees, is z_1 z_2.
HALF = partial(by.squared_radius, factor=0.5)
Z, NORMAL = by.square(), by.absolute()

LINKS = {
    # one index
    "square": Link(lambda: MultiIndex(lambda z: z[0] ** 2, 1), added(Z)),
    "absolute value": Link(lambda: MultiIndex(lambda z: abs(z[0]), 1), added(NORMAL)),
    "exponential of the square": Link(lambda: MultiIndex(lambda z: jnp.exp(z[0] ** 2), 1), added(Z)),
    "cosine": Link(lambda: MultiIndex(lambda z: jnp.cos(z[0]), 1), by.cosine),
    "cosine with noise": Link(lambda: MultiIndex(lambda z: jnp.cos(z[0]), 1, 0.1), partial(by.noisy_cosines, 1, 0.1)),
    "square with noise": Link(lambda: MultiIndex(lambda z: z[0] ** 2, 1, 0.5), blurred(Z, 0.5, 90.0)),
    "interval": Link(lambda: MultiIndex(lambda z: jnp.sign(z[0] ** 2 - 1), 1), partial(by.intervals, [1.0])),
    "four intervals": Link(
        lambda: MultiIndex(lambda z: (abs(z[0]) > jnp.array([0.5, 1.0, 2.0])).sum() * 1.0, 1),
        partial(by.intervals, [0.5, 1.0, 2.0]),
    ),
    "rare interval": Link(
        lambda: MultiIndex(lambda z: jnp.sign(z[0] ** 4 - 117), 1), partial(by.intervals, [117**0.25])
    ),
    "not below one": Link(lambda: MultiIndex(lambda z: jnp.maximum(z[0] ** 2, 1.0), 1), by.not_below_one),
    # two indices
    "product": Link(lambda: MultiIndex(lambda z: z[0] * z[1], 2), by.two_factors),
    "difference of squares": Link(lambda: MultiIndex(squares(0.5, -0.5), 2), by.two_factors),
    "size of the product": Link(lambda: MultiIndex(lambda z: abs(z[0] * z[1]), 2), multiplied(NORMAL, NORMAL)),
    "product with noise": Link(lambda: MultiIndex(lambda z: z[0] * z[1], 2, 0.1), partial(by.two_noisy_factors, 0.1)),
    "ratio": Link(lambda: MultiIndex(lambda z: z[0] / z[1], 2), by.ratio),
    "circle": Link(lambda: MultiIndex(norm, 2), added(by.squared_radius(2))),
    "exponential of the circle": Link(lambda: MultiIndex(lambda z: jnp.exp(norm(z)), 2), added(by.squared_radius(2))),
    "ellipse": Link(lambda: MultiIndex(squares(1.0, 3.0), 2), added(Z, by.square(3.0))),
    "diamond": Link(lambda: MultiIndex(lambda z: abs(z).sum(), 2), added(NORMAL, NORMAL)),
    "largest of two": Link(lambda: MultiIndex(largest, 2), partial(by.without_noise, by.largest_of(2))),
    "two cosines with noise": Link(
        lambda: MultiIndex(lambda z: jnp.cos(z).sum(), 2, 0.1), partial(by.noisy_cosines, 2, 0.1)
    ),
    "sign of the product": Link(lambda: MultiIndex(lambda z: jnp.sign(z[0] * z[1]), 2), by.sign_of_two_factors),
    "disc": Link(lambda: MultiIndex(lambda z: jnp.sign(norm(z) - 2), 2), partial(by.ball, 2, 2.0)),
    "shells of a circle": Link(
        lambda: MultiIndex(lambda z: jnp.floor(norm(z)), 2), partial(by.shells, 2, range(1, 60))
    ),
    # three indices
    "shells of a sphere": Link(
        lambda: MultiIndex(lambda z: jnp.floor(norm(z) / 2 + 0.5), 3), partial(by.shells, 3, range(1, 60, 2))
    ),
    "octahedron": Link(lambda: MultiIndex(lambda z: abs(z).sum(), 3), added(NORMAL, NORMAL, NORMAL)),
    "sphere": Link(lambda: MultiIndex(norm, 3), added(by.squared_radius(3))),
    "sphere with noise": Link(lambda: MultiIndex(norm, 3, 0.1), blurred(by.squared_radius(3), 0.1, 90.0)),
    "sphere with much noise": Link(lambda: MultiIndex(norm, 3, 0.5), blurred(by.squared_radius(3), 0.5, 90.0)),
    "cone": Link(lambda: MultiIndex(squares(1.0, 1.0, -1.0), 3), subtracted(by.squared_radius(2), Z)),
    "ellipsoid": Link(lambda: MultiIndex(squares(1.0, 0.5, 0.25), 3), added(Z, by.square(0.5), by.square(0.25))),
    "three factors": Link(lambda: MultiIndex(lambda z: z[0] * z[1] * z[2], 3), multiplied(NORMAL, NORMAL, NORMAL)),
    "how many of three": Link(lambda: MultiIndex(large_ones, 3), partial(by.how_many_large, 3, 0.7, float)),
    "majority of three": Link(
        lambda: MultiIndex(lambda z: jnp.sign(large_ones(z)), 3),
        partial(by.how_many_large, 3, 0.7, lambda k: float(k > 1)),
    ),
    # four indices
    "sphere of four": Link(lambda: MultiIndex(norm, 4), added(by.squared_radius(4))),
    "ellipsoid of four": Link(lambda: MultiIndex(squares(1.0, 2.0, 3.0, 4.0), 4), four_squares),
    "two products": Link(lambda: MultiIndex(lambda z: z[0] * z[1] + z[2] * z[3], 4), subtracted(HALF(2), HALF(2))),
    "largest of four": Link(lambda: MultiIndex(largest, 4), partial(by.without_noise, by.largest_of(4))),
    "how many of four": Link(lambda: MultiIndex(large_ones, 4), partial(by.how_many_large, 4, 0.7, float)),
    # several tokens
    "norm of three tokens": Link(lambda: SequenceIndex(norm, 1, 3), added(by.squared_radius(3))),
    "sizes of three tokens": Link(lambda: SequenceIndex(lambda Z: abs(Z).sum(), 1, 3), added(NORMAL, NORMAL, NORMAL)),
    "largest of three tokens": Link(lambda: SequenceIndex(largest, 1, 3), partial(by.without_noise, by.largest_of(3))),
    "cosines of three tokens with noise": Link(
        lambda: SequenceIndex(lambda Z: jnp.cos(Z).sum(), 1, 3, 0.1), partial(by.noisy_cosines, 3, 0.1)
    ),
    "ball of three tokens": Link(
        lambda: SequenceIndex(lambda Z: jnp.sign(norm(Z) - 3), 1, 3), partial(by.ball, 3, 3.0)
    ),
    "two indices, two tokens": Link(lambda: SequenceIndex(norm, 2, 2), added(by.squared_radius(4))),
    "inner product": Link(lambda: SequenceIndex(lambda Z: Z[0] @ Z[1], 2, 2), subtracted(HALF(2), HALF(2))),
    "inner product with noise": Link(
        lambda: SequenceIndex(lambda Z: Z[0] @ Z[1], 2, 2, 0.1), subtracted(HALF(2), HALF(2), 0.1, 45.0)
    ),
    # several outputs
    "two squares": Link(
        lambda: MultiIndex(lambda z: z**2, 2), partial(by.polynomial, 2, lambda z: by.diagonal(z**2 - 1))
    ),
    "up to the sign": Link(
        lambda: MultiIndex(lambda z: jnp.stack([z[0] * z[1], z[0] ** 2 - z[1] ** 2]), 2), partial(by.revealed, 2)
    ),
    "two circles": Link(
        lambda: MultiIndex(lambda z: jnp.stack([norm(z[:2]), norm(z[2:])]), 4),
        partial(by.polynomial, 4, lambda z: by.diagonal((z**2).reshape(-1, 2, 2).mean(2).repeat(2, 1) - 1)),
    ),
    "inner products of two tokens": Link(
        lambda: SequenceIndex(lambda Z: jnp.stack([Z[:, 0] @ Z[:, 0], Z[:, 0] @ Z[:, 1], Z[:, 1] @ Z[:, 1]]), 2, 2),
        partial(by.gram, 2, 2),
    ),
}


@cache
def found(name: str) -> Threshold:
    """The first threshold as the verb finds it, without what comes after it."""
    parts = BayesOptimal(LINKS[name].model).theory.parts()
    return min((first_step(part.evolution, TOLERANCE, quietly).threshold for part in parts), key=lambda one: one.alpha)


@cache
def distance(name: str) -> float:
    """From the quadrature, in stated errors; what is exact is so up to rounding."""
    alpha = LINKS[name].alpha()
    return abs(found(name).alpha - alpha) / (found(name).error + 1e-6 * alpha)


#: A link of several outputs whose posteriors come from draws: minutes.
LONGEST = {"inner products of two tokens"}
#: Each is much like another one.
SIMILAR = {
    "exponential of the square", "exponential of the circle", "sphere", "sphere with much noise", "how many of three",
    "sizes of three tokens", "ball of three tokens", "cosines of three tokens with noise", "two products",
    "largest of four", "inner product with noise", "how many of four", "norm of three tokens", "majority of three",
}  # fmt: skip
NAMES = [pytest.param(name, marks=pytest.mark.full) if name in LONGEST | SIMILAR else name for name in LINKS]


@pytest.mark.parametrize("name", NAMES)
def test_the_error_covers_the_distance(name: str) -> None:
    assert distance(name) < 3


@pytest.mark.parametrize("name", NAMES)
def test_the_threshold_is_as_good_as_asked_for(name: str) -> None:
    alpha = LINKS[name].alpha()
    # Twice the tolerance, which is one standard error.
    assert found(name).error <= 2 * TOLERANCE * alpha
    assert abs(found(name).alpha - alpha) <= 2 * TOLERANCE * alpha


@pytest.mark.full
def test_half_of_all_lie_within_one_error() -> None:
    # Of normal errors 68 % would; with some 40 links half or more is then 99 % likely.
    sampled = [name for name in LINKS if name not in LONGEST and found(name).error > 1e-9 * found(name).alpha]
    assert len(sampled) >= 24
    assert np.mean([distance(name) < 1 for name in sampled]) >= 0.5


#: One number of many values; equal rates (the first), and scatter around the tolerance, where one stops by chance.
SORTED = ("shells of a circle", "cosine with noise", "size of the product", "cone")


@cache
def distances_of_sets(name: str, sets: int = 8) -> np.ndarray:
    """Of first thresholds from independent sets of draws, in stated errors."""
    link = LINKS[name]
    channel, rate = channel_of(link.model), 1 / link.alpha()
    draws, unseen = sorted_outputs._draws, np.zeros((channel.indices,) * 2)
    distances = []
    for number in range(sets):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sorted_outputs, "_draws", lambda c, n, k, far=1000 * (number + 1): draws(c, n, k + far))
            sorted_outputs._randomisation.cache_clear()
            found = sorted_outputs.instability_from_sorted_outputs(channel, TOLERANCE, unseen)
        distances.append(abs(found.rate - rate) / found.error)
    sorted_outputs._randomisation.cache_clear()
    return np.array(distances)


@pytest.mark.parametrize("names", [SORTED[:2], pytest.param(SORTED, marks=pytest.mark.full)], ids=["two", "all"])
def test_errors_of_sets_of_draws_cover(names: tuple[str, ...]) -> None:
    distances = np.concatenate([distances_of_sets(name) for name in names])
    # Of 32, beyond three once in 370 times: two of them once in 300;
    # one beyond four once in 60 where all of them stopped at eight rows.
    assert np.count_nonzero(distances > 3) <= 1
    assert distances.max() < 4
    assert np.mean(distances < 1) >= 0.5


@pytest.mark.full  # of the quadrature alone
@pytest.mark.parametrize("name", [name for name, link in LINKS.items() if link.has_nodes])
def test_twice_the_nodes_move_the_quadrature_by_less_than_1e_5(name: str) -> None:
    assert LINKS[name].alpha(finer=2) == pytest.approx(LINKS[name].alpha(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "alpha"),
    [
        ("square", 1 / 2),
        ("product", 0.593751),
        ("circle", 1.0),
        ("sphere of four", 2.0),
        ("norm of three tokens", 1 / 2),
    ],
)
def test_the_quadrature_gives_known_thresholds(name: str, alpha: float) -> None:
    assert LINKS[name].alpha() == pytest.approx(alpha, abs=1e-6)  # digits given


def test_the_mean_of_four_starts_by_itself_where_the_largest_is_seen() -> None:
    """At y = max(z) one index is y and the others are below it: E[z|y] and E[z z^T|y] are those of cut normals."""
    found = StateEvolution(channel_of(MultiIndex(lambda z: z.max(), 4))).growth_of_nothing(0.5 * TOLERANCE, 1)
    y, weight = np.polynomial.legendre.leggauss(400)
    y, weight = 0.5 + 8.5 * y, 8.5 * weight
    pull = stats.norm.pdf(y) / stats.norm.cdf(y)
    weight = weight * 4 * stats.norm.pdf(y) * stats.norm.cdf(y) ** 3
    g = y / 4 - 0.75 * pull
    # Of directions without the mean: E[z_1^2 - 1|y] - E[z_1 z_2|y].
    rest = y**2 / 4 + 0.75 * (1 - y * pull) - 1 - 0.5 * pull * (pull - y)
    np.testing.assert_allclose(found.moment, weight @ g**2, rtol=2e-3)  # on 2^17 nodes
    assert abs(found.rate - weight @ rest**2) < 3 * found.error


def test_two_squares_are_recovered_where_one_is() -> None:
    one, two = (
        thresholds(BayesOptimal(LINKS[name].model), which=("exact_recovery",), progress=False).ds
        for name in ("square", "two squares")
    )
    assert float(two.exact_recovery) == float(one.exact_recovery)


@pytest.mark.parametrize(
    "name",
    [
        "cosine",
        pytest.param("ellipse", marks=pytest.mark.full),
        pytest.param("sphere with noise", marks=pytest.mark.full),
    ],
)
def test_the_verb_says_the_same(name: str) -> None:
    ds = thresholds(BayesOptimal(LINKS[name].model), progress=False).ds
    first = int(ds.weak_recovery.argmin())
    assert abs(float(ds.weak_recovery[first]) - LINKS[name].alpha()) < 3 * float(ds.weak_recovery_err[first])
    assert float(ds.staircase[0]) == float(ds.weak_recovery[first])
