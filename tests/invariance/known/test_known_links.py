"""Links that are functions of others, in other units or seen in rare places: overlaps that are known.

Each of these once gave another number and the status "converged".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf
from scipy.optimize import brentq
from scipy.stats import norm

import asymptotix as asx
from invariance.known.solved import solved, within

SLOW = pytest.mark.slow


#: Strictly monotone functions of one index: linear regression, where the overlap is alpha.
REGRESSIONS = {
    "erf": lambda Z: erf(Z[0]),
    "steep erf": lambda Z: erf(2 * Z[0]),
    "shifted erf": lambda Z: erf(1.22 * Z[0] + 0.72),
    "tanh": lambda Z: jnp.tanh(4 * Z[0]),
    "steep tanh": lambda Z: jnp.tanh(30 * Z[0]),
    "logistic": lambda Z: jax.nn.sigmoid(5 * Z[0]),
    "double exponential": lambda Z: jnp.exp(-jnp.exp(-3 * Z[0])),
    "exponential": lambda Z: jnp.exp(-4 * Z[0]),
    "softplus": lambda Z: jax.nn.softplus(10 * Z[0]),
    "distribution": lambda Z: jax.scipy.stats.norm.cdf(Z[0]),
    "tiny cube": lambda Z: 1e-30 * Z[0] ** 3,
    "two tokens": lambda Z: jnp.tanh(3 * Z[0]),
}


def _marked(names, slow):
    return [pytest.param(name, marks=[SLOW] * (name in slow)) for name in names]


@pytest.mark.parametrize("name", _marked(REGRESSIONS, ("softplus", "distribution")))
def test_a_strictly_monotone_link_is_linear_regression(name):
    tokens = 2 if name == "two tokens" else 1
    alphas = np.array([0.25, 0.6])
    within(solved(REGRESSIONS[name], alphas / tokens, tokens=tokens), alphas)


def test_strictly_monotone_outputs_of_two_indices_are_two_regressions():
    found = solved(lambda Z: jnp.stack([erf(Z[0, 0]), Z[1, 0]]), [0.7], indices=2)
    within(found, 0.7 * np.eye(2)[None])


#: Strictly monotone functions of z^2: phase retrieval, whose overlaps at alpha 0.6 and 0.9 a quadrature gave.
RETRIEVALS = {
    "square": lambda Z: Z[0] ** 2,
    "tanh": lambda Z: jnp.tanh(3 * Z[0] ** 2),
    "bell": lambda Z: jnp.exp(-(Z[0] ** 2)),
    "tiny": lambda Z: 1e-160 * Z[0] ** 2,
    "high power": lambda Z: Z[0] ** 20,
    "two bells": lambda Z: jnp.exp(-12 * Z[0] ** 2) + jnp.exp(-6 * Z[0] ** 2),
}


@pytest.mark.parametrize("name", RETRIEVALS)
def test_a_strictly_monotone_function_of_a_square_is_phase_retrieval(name):
    within(solved(RETRIEVALS[name], [0.6, 0.9]), [0.051820, 0.330772], slack=1e-6)


def _pooled(Z):
    """Return a rectifier, as the first of two maxima over rows; the second row is the same everywhere."""
    return jnp.max(jnp.stack([jnp.append(Z[0], 0.0), jnp.array([100.0, 101.0])]), axis=1)[0]


def _looped(function):
    """Return a link whose program does not tell its branches."""
    return lambda Z: jax.lax.fori_loop(0, 1, lambda _, z: function(z), Z[0])


@pytest.mark.parametrize("link", [_pooled, pytest.param(_looped(lambda z: jnp.maximum(z, 0.0) ** 2), marks=SLOW)])
def test_a_rectifier_in_other_words(link):
    within(solved(link, [0.5, 1.2]), [0.38163, 0.79242], slack=1e-5)


#: Strictly monotone links that double precision makes constant far out, in programs of which no branches are known.
HIDDEN = {
    "loop": _looped(lambda z: jnp.tanh(30 * z)),
    "polynomial": lambda Z: jnp.polyval(jnp.array([1.0, 0.0, 2.0, 0.0]), jnp.tanh(20 * Z[0])),
    "root": lambda Z: jnp.sin(jnp.sqrt(1.2 + jnp.tanh(20 * Z[0]))),
    "sum": lambda Z: jnp.tanh(20 * Z[0]) + jnp.log(2 + jnp.tanh(15 * Z[0])),
    "checkpoint": lambda Z: jax.checkpoint(lambda x: erf(9 * x))(Z[0]),
}


@pytest.mark.parametrize("name", _marked(HIDDEN, HIDDEN.keys() - {"root"}))
def test_what_rounding_makes_constant_is_linear_regression(name):
    found = solved(HIDDEN[name], [0.3, 0.7])
    within(found, [0.3, 0.7])
    assert np.isposinf(found.free_entropy_err).all()  # the slope of most outputs is not known


@SLOW
def test_values_of_a_discrete_output_have_no_units():
    def levels(middle, left, right):
        return lambda Z: jnp.where(abs(Z[0]) < 1.3, middle, jnp.where(Z[0] < 0, left, right))

    within(solved(levels(0.0, 1e-4, 1e9), [1.0, 3.0]), solved(levels(0.0, 1.0, 2.0), [1.0, 3.0]).overlap.values.ravel())


@pytest.mark.parametrize(
    "link",
    [
        lambda Z: jax.lax.stop_gradient(Z[0]),
        lambda Z: Z[0] + jax.lax.stop_gradient(jnp.sign(Z[0]) - Z[0]),
        lambda Z: jnp.sin(1000 * jnp.pi * Z[0]) + 0.1 * Z[0] ** 2,  # the grid's step is its period
    ],
)
def test_slopes_that_do_not_explain_the_values_are_refused(link):
    with pytest.raises(NotImplementedError, match="do not explain its values"):
        solved(link, [0.6])


def test_noise_beside_outputs_of_any_unit():
    tiny = asx.BayesOptimal(asx.MultiIndex(lambda z: 1e-170 * z[0] ** 2, 1, 0.1))
    assert float(asx.solve(tiny, alpha=2.0, progress=False).overlap.squeeze()) == 0
    with pytest.raises(ValueError, match="noise must be 0 or visible"):
        asx.solve(asx.BayesOptimal(asx.MultiIndex(lambda z: 1e200 * z[0] ** 2, 1, 0.1)), alpha=2.0, progress=False)


@pytest.mark.parametrize("name", _marked(["bell", "tanh", "tiny"], ("tanh", "tiny")))
def test_thresholds_do_not_see_a_strictly_monotone_function(name):
    found = asx.thresholds(asx.BayesOptimal(asx.MultiIndex(RETRIEVALS[name], 1)), progress=False)
    assert abs(float(found.weak_recovery[0]) - 0.5) <= 3 * float(found.weak_recovery_err[0])
    assert abs(float(found.exact_recovery) - 1.12847) <= 3 * float(found.exact_recovery_err) + 1e-5


def test_thresholds_of_a_strictly_monotone_link_are_those_of_linear_regression():
    """Overlaps alpha: learned from the beginning, and exactly where there are as many samples as unknowns."""
    found = asx.thresholds(asx.BayesOptimal(asx.MultiIndex(REGRESSIONS["steep erf"], 1)), progress=False)
    assert found.weak_recovery.item() == 0
    assert found.exact_recovery_informed.item() == 1
    assert abs(found.exact_recovery.item() - 1) <= 3 * found.exact_recovery_err.item() < 0.01


@pytest.mark.parametrize(
    "link", [pytest.param(lambda Z: 1e-7 * jnp.sign(Z[0]), marks=SLOW), lambda Z: 1e7 + jnp.sign(Z[0])]
)
def test_the_perceptron_has_no_units(link):
    within(solved(link, [1.0]), [0.4860], slack=5e-4)  # that is known to three digits


@functools.cache
def _rectifier():
    return solved(lambda Z: jnp.maximum(Z[0], 0), [0.5, 1.2])


@pytest.mark.parametrize(
    "link",
    [
        lambda Z: 1e6 + jnp.maximum(Z[0], 0),
        pytest.param(lambda Z: 1e-6 * jnp.maximum(Z[0], 0), marks=SLOW),
        pytest.param(lambda Z: 1e4 * jnp.maximum(Z[0], 0), marks=SLOW),
        pytest.param(lambda Z: 4.86e-4 * jnp.maximum(Z[0], 0) ** 2 + 9.3e-5, marks=SLOW),
    ],
)
def test_the_rectifier_has_no_units_and_no_power(link):
    own = _rectifier()
    within(own, [0.3816, 0.7924], slack=1e-4)
    within(solved(link, [0.5, 1.2]), own.overlap.values.ravel(), slack=float(own.overlap_err.max()))


@pytest.mark.parametrize(
    ("link", "alpha", "overlap"),
    [
        # By a quadrature of its own, to six digits.
        pytest.param(lambda Z: jnp.clip(Z[0], -3, 3), 0.7, 0.699629, marks=SLOW),
        (lambda Z: jnp.tanh(jnp.clip(Z[0], -3, 3)), 0.7, 0.699629),
        (lambda Z: jnp.where(Z[0] > 2.2, 10.0, Z[0]), 0.7, 0.697420),
    ],
)
def test_what_a_link_does_in_rare_places_is_seen(link, alpha, overlap):
    within(solved(link, [alpha]), [overlap], slack=1e-6)


def _rarely_second(Z):
    return jnp.where(Z[0] > 2.6, Z[1], Z[0])


@SLOW
def test_an_index_that_is_seen_rarely_is_learned():
    found = solved(_rarely_second, [0.7], indices=2)
    assert float(found.overlap[0, 1, 1]) > 3 * float(found.overlap_err[0, 1, 1]) > 0
    problem = asx.BayesOptimal(asx.MultiIndex(_rarely_second, 2))
    weak = asx.thresholds(problem, which="weak_recovery", progress=False)
    assert weak.weak_recovery.values.tolist() == [0, 0]


@SLOW
def test_rounding_down_a_square_is_known_by_its_levels():
    """Level k is k <= 2 z^2 < k+1, on both sides of zero; the fixed point by a quadrature over both."""
    edges = np.sqrt(np.arange(0, 250) / 2)  # up to 11 deviations
    (x, weight), alpha = np.polynomial.legendre.leggauss(1000), np.array([0.6, 1.5])
    x, weight = 9 * x, 9 * weight * norm.pdf(9 * x)

    def second_moment(v: float) -> float:
        low, high = ((side - np.sqrt(1 - v) * x[:, None]) / np.sqrt(v) for side in (edges[:-1], edges[1:]))
        below, above = ((-side - np.sqrt(1 - v) * x[:, None]) / np.sqrt(v) for side in (edges[:-1], edges[1:]))
        known = norm.cdf(high) - norm.cdf(low) + norm.cdf(below) - norm.cdf(above)
        slope = norm.pdf(low) - norm.pdf(high) + norm.pdf(above) - norm.pdf(below)
        share = np.where(known > 1e-13, slope**2 / np.maximum(known, 1e-13), 0)  # less is lost by rounding
        return float(weight @ share.sum(1)) / v

    q = [brentq(lambda q, a=a: a * second_moment(1 - q) - q / (1 - q), 0.01, 0.99) for a in alpha]
    within(solved(lambda Z: jnp.floor(2 * Z[0] ** 2), alpha), q, slack=1e-6)


@SLOW
@pytest.mark.parametrize(
    "function",
    [
        jnp.tanh,
        pytest.param(lambda s: jnp.tanh(3 * s), marks=pytest.mark.full),
        pytest.param(lambda s: s**3, marks=pytest.mark.full),
    ],
)
def test_strictly_monotone_functions_of_a_product_are_the_product(function):
    own, other = (solved(link, [0.8], indices=2) for link in (lambda Z: Z[0] * Z[1], lambda Z: function(Z[0] * Z[1])))
    within(other, own.overlap.values, slack=float(3 * own.overlap_err.max()))


@SLOW
@pytest.mark.parametrize(
    ("link", "unit", "shift"),
    [
        (lambda Z: Z[0] * Z[1], 1e-10, 0.0),
        pytest.param(lambda Z: jnp.sign(Z[0]) + jnp.sign(Z[1]), 6.9e-10, 0.0, marks=pytest.mark.full),
        (lambda Z: jnp.maximum(Z[0], 0.79 * Z[1]), 3.7e-10, 3.3e-5),
        pytest.param(lambda Z: jnp.maximum(Z[0], 0.5 * Z[1]), 1e-10, 0.0, marks=pytest.mark.full),
        pytest.param(lambda Z: (Z[0] - 1.42 * Z[1]) ** 2, 4.2e3, -1e3, marks=pytest.mark.full),
    ],
)
def test_links_of_two_indices_have_no_units(link, unit, shift):
    """Affine functions at the end of a link are taken off: the same numbers, but for rounding."""
    own, other = (solved(one, [0.8], indices=2) for one in (link, lambda Z: unit * link(Z) + shift))
    np.testing.assert_allclose(other.overlap.values, own.overlap.values, atol=1e-9)
    np.testing.assert_allclose(
        other.free_entropy.values, own.free_entropy.values - 0.8 * np.log(unit) * _continuous(link), atol=1e-6
    )


def _continuous(link) -> float:
    """Whether the outputs have a density, which has units, and no probabilities."""
    values = np.asarray(jax.vmap(link)(np.random.default_rng(0).standard_normal((1000, 2, 1))))
    return float(len(np.unique(values)) > 100)


@SLOW
def test_tokens_of_their_own_are_samples():
    one, three = solved(lambda Z: Z[0] ** 2, [0.9]), solved(lambda Z: Z[0] ** 2, [0.3], tokens=3)
    np.testing.assert_allclose(three.overlap.values, one.overlap.values, rtol=1e-12)
    np.testing.assert_allclose(three.free_entropy.values, one.free_entropy.values, rtol=1e-12)
    unseen = solved(lambda Z: Z[0, 1] ** 2, [0.9], tokens=3)
    np.testing.assert_allclose(unseen.overlap.values, one.overlap.values, rtol=1e-12)


def test_the_evidence_of_an_output_that_shows_one_of_two_tokens():
    """Of the reduced link the last operation was hidden, and the free entropies were 46 errors apart."""

    def link(z):
        return jnp.exp(-0.513 * jnp.where(jnp.abs(z) > 2.08, z, z**2) ** 2)

    one, two = solved(lambda Z: link(Z[0]), [0.198]), solved(lambda Z: link(Z[0, 1]), [0.198], tokens=2)
    np.testing.assert_allclose(two.overlap.values, one.overlap.values, rtol=1e-12)
    np.testing.assert_allclose(two.free_entropy.values, one.free_entropy.values, rtol=1e-12)


def _oscillating(z):
    return jnp.exp(-(jnp.sin(2.91 * z + 2.27) ** 2))


@pytest.mark.parametrize(
    ("link", "tokens", "noise"),
    [
        pytest.param(lambda z: jnp.abs(z - 0.5), 1, 0.0, marks=pytest.mark.full),
        (lambda z: z**2, 1, 0.1),
        pytest.param(lambda z: z**2, 2, 0.0, marks=SLOW),
        pytest.param(_oscillating, 1, 0.0, marks=SLOW),
        pytest.param(lambda z: jnp.sin(6 * z), 1, 0.0, marks=pytest.mark.full),
    ],
)
def test_indices_that_the_output_does_not_show_change_nothing(link, tokens, noise):
    def found(row, indices, **options):
        model = asx.SequenceIndex(lambda Z: link(Z[row]), indices, tokens, noise)
        return asx.solve(asx.BayesOptimal(model, **options), alpha=[0.8 / tokens], progress=False)

    alone, hidden = found(0, 1), [found(row, 3) for row in (0, 2)]
    for row, one in zip((0, 2), hidden, strict=True):
        for name in ("overlap", "overlap_err"):
            expected = np.zeros((1, 3, 3))
            # The absolute value is not analytic: probes say that the link does not depend on an index.
            if name == "overlap_err" and bool(one.overlap_err[0, 1, 1] > 0):
                expected[0] = np.diag(np.arange(3) != row) * 0.8 / tokens * 3 / 2**14
            expected[0, row, row] = alone[name].item()
            np.testing.assert_allclose(one[name].values, expected, rtol=1e-12)
        np.testing.assert_allclose(one.free_entropy, alone.free_entropy, rtol=1e-12)
        assert one.status.item() == alone.status.item()
    side = found(2, 3, side_information=0.1)
    assert side.overlap.values[0, 0, 0] == side.overlap.values[0, 1, 1] == 0.1
    assert side.overlap.values[0, 2, 2] > 0.1


@SLOW
def test_thresholds_starts_and_held_overlaps_with_an_index_that_is_not_shown():
    one, two = (asx.BayesOptimal(asx.MultiIndex(lambda z: z[-1] ** 2, P)) for P in (1, 2))
    own, found = (asx.thresholds(problem, progress=False) for problem in (one, two))
    assert found.weak_recovery.values.tolist() == [np.inf, own.weak_recovery.item()]
    assert found.exact_recovery.item() == own.exact_recovery.item()
    assert "never learned: index 1" in found.status.item()
    alone = asx.solve(one, alpha=0.8, progress=False).overlap.item()
    started = asx.solve(two, alpha=0.8, start=[0.5, 0.3], progress=False).overlap.values
    np.testing.assert_allclose(started, np.diag([0.0, alone]), atol=1e-6)
    held = asx.solve(two, alpha=0.8, fixed={"index 1": 0.4}, progress=False).overlap.values
    np.testing.assert_allclose(held, np.diag([0.4, alone]), atol=1e-9)
    held = asx.solve(two, alpha=0.8, fixed={"index 2": 0.4}, progress=False).overlap.values
    np.testing.assert_allclose(held, np.diag([0.0, 0.4]), atol=1e-12)


@SLOW
def test_a_bent_function_of_one_index_knows_no_tokens():
    def bump(z):
        return 1 / (1 + (erf(1.59 * z) - 0.09) ** 2)

    one, two = solved(lambda Z: bump(Z[0]), [0.9]), solved(lambda Z: bump(Z[0]), [0.45], tokens=2)
    np.testing.assert_allclose(two.overlap.values, one.overlap.values, rtol=1e-9)
    assert 0.1 < one.overlap.item() < 0.9


@SLOW
def test_a_clipped_output_has_no_units():
    def clipped(Z):
        return jnp.clip(1 / (1 + Z[0] ** 2), 0.2, 0.8)

    own, other = solved(clipped, [0.8]), solved(lambda Z: -4.3e5 * clipped(Z) - 8.7e9, [0.8])
    np.testing.assert_allclose(other.overlap.values, own.overlap.values, rtol=1e-9)


@SLOW
@pytest.mark.parametrize(
    ("activation", "alpha"), [pytest.param("linear", 0.3, marks=pytest.mark.full), ("softmax", 0.53)]
)
def test_one_layer_of_attention_is_a_link(activation, alpha):
    def attended(Z):
        scores = Z[0][:, None] * Z[0]
        return scores if activation == "linear" else jax.nn.softmax(scores, axis=-1)

    own = asx.solve(asx.BayesOptimal(asx.DeepAttention(1, 2, activation=activation)), alpha=[alpha], progress=False)
    other = solved(attended, [alpha], tokens=2)
    assert own.ok
    error = np.hypot(own.overlap_err.values, other.overlap_err.values)
    assert (abs(own.overlap.values - other.overlap.values) <= 3 * error + 1e-6).all()  # an exact overlap is 1 - 1e-6


@pytest.mark.full
def test_a_softmax_of_ones_own_is_that_of_the_library():
    activations = ("softmax", lambda logits: jax.nn.softmax(logits, axis=-1))
    problems = [asx.BayesOptimal(asx.DeepAttention(1, 2, activation=activation)) for activation in activations]
    built_in, own = (asx.solve(one, alpha=[0.258], tolerance=2e-3, progress=False) for one in problems)
    assert own.ok
    within(own, built_in.overlap.values)


@SLOW
def test_thresholds_of_tokens_of_their_own():
    def problem(tokens):
        return asx.BayesOptimal(asx.SequenceIndex(lambda Z: jnp.cos(Z[0]), 1, tokens))

    one, two = (asx.thresholds(problem(tokens), progress=False) for tokens in (1, 2))
    for name in ("weak_recovery", "exact_recovery"):
        np.testing.assert_allclose(2 * two.ds[name].values, one.ds[name].values, rtol=1e-9)


@SLOW
def test_what_is_seen_in_jumps_alone_is_never_exactly_recovered():
    found = asx.thresholds(
        asx.BayesOptimal(asx.MultiIndex(lambda z: z[0] ** 2 + jnp.sign(z[0] * z[1] * z[2]), 3)), progress=False
    )
    # The law of z1^2 given the output is a mixture of two: by quadrature.
    assert abs(float(found.weak_recovery[0]) - 0.575166) <= 3 * float(found.weak_recovery_err[0])
    assert np.isposinf(float(found.exact_recovery))


@SLOW
def test_the_curve_of_two_layers_is_smooth_where_an_estimator_changed():
    alphas = np.linspace(0.3155, 0.3205, 6)
    found = asx.solve(asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2)), alpha=alphas, progress=False)
    assert found.ok
    overlap, error = found.overlap.values[:, 1, 1], found.overlap_err.values[:, 1, 1]
    assert (np.diff(overlap) > 0).all()
    # Nodes are common to all points: a curve that is smooth bends by far less than its errors.
    assert (abs(np.diff(overlap, 2)) < 0.2 * error[1:-1]).all()


@pytest.mark.parametrize(
    "link",
    [
        lambda Z: jnp.sin(jnp.tanh(3 * Z[0] ** 2)),  # tanh is one on either side
        lambda Z: jnp.sin(jnp.exp(-1 / Z[0] ** 2)),  # zero around zero
    ],
)
def test_roots_that_rounding_hides_are_refused(link):
    """Phase retrieval, whose sign would be taken for known where the link is constant by rounding."""
    with pytest.raises(NotImplementedError, match="roots cannot be found"):
        solved(link, [0.7])


def test_posteriors_of_outputs_that_rounding_makes_constant_are_refused():
    with pytest.raises(NotImplementedError, match="constant by rounding"):
        solved(lambda Z: jnp.cumsum(jnp.tanh(20 * Z[0]) * jnp.array([1.0, 2.0])), [0.7])
