"""One head in every layer: the closed form against the reference, the general solver and a plain scan."""

import numpy as np
import pytest
from scipy.special import logsumexp

import asymptotix as asx
from asymptotix.attention_paths.theory.action import Action
from asymptotix.attention_paths.theory.elimination import Layers, eliminate, entropy
from asymptotix.attention_paths.theory.order_parameter import minimise
from asymptotix.attention_paths.theory.single_path import SinglePath
from reference_numbers import reference

# Layers, variances, ratios of widths.
CASES = [
    (1, 0.8, None),
    (1, (0.7, 1.2, 0.9), (0.3, 2.0)),
    (2, (0.7, 1.2, 0.9, 1.1), (2.0, 0.5, 1.0)),
    (3, 1.3, (0.5, 3.0, 1.0, 0.2)),
]


def data(examples=30, features=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((examples, 1, features)), 1.5 * rng.standard_normal(examples)


@pytest.mark.parametrize("width", [3.0, 40.0])
@pytest.mark.parametrize(("layers", "variances", "ratios"), CASES)
def test_same_answer_as_the_general_solver(layers, variances, ratios, width):
    xi, labels = data()
    single = SinglePath(xi, labels, layers, 0.2, variances, ratios).minimise(width)
    action = Action(xi, labels, (1,) * layers, 0.2, variances, width, ratios)
    general = minimise(action, tolerance=1e-10)
    assert single.converged
    assert single.words == "converged"
    assert single.gradient_norm < 1e-12
    np.testing.assert_allclose(single.U, general.U, rtol=1e-6)
    np.testing.assert_allclose(single.action, general.action, rtol=1e-12)
    np.testing.assert_allclose(np.ravel(single.inner), np.ravel(general.inner), rtol=1e-6)
    # Its own U is stationary for the general action too.
    assert abs(action.at(single.U).gradient.item() * single.U.item()) < 1e-10


def test_equal_widths_are_the_formula_and_the_reference():
    rng = np.random.default_rng(5)
    for case in reference("attention_paths")["h1_closed_form"]:
        L, P, N = case["L"], case["P"], case["N"]
        xi = rng.standard_normal((P, 100, 1)).transpose(0, 2, 1)
        labels = 2.0 * np.sign(rng.standard_normal(P))
        single = SinglePath(xi, labels, L, 0.05)
        found = single.minimise(N)
        # The reference comes from a bounded scalar search on S: the square root of the rounding of S.
        np.testing.assert_allclose(found.U.item(), case["U_corrected_H1_action"], rtol=1e-6)
        # And it is not the minimum of U - ln U in the place of (L + 1) U^(1/(L + 1)) - ln U.
        assert found.U.item() > 1.2 * case["U_paper_H1_formula"]
        expected = [found.U.item() ** ((L + 2 - layer) / (L + 1)) for layer in range(2, L + 2)]
        np.testing.assert_allclose(np.ravel(found.inner), expected, rtol=1e-12)
        U, K = found.U.item(), found.U.item() * xi[:, 0] @ xi[:, 0].T / 100 + 0.05 * np.eye(P)
        energy = np.linalg.slogdet(K)[1] + labels @ np.linalg.solve(K, labels)
        np.testing.assert_allclose(found.action, (L + 1) * U ** (1 / (L + 1)) - np.log(U) + energy / N, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_lowest_of_several_minima_is_taken(seed):
    # Inputs whose strengths span eight decades make the energy fall in several steps.
    rng = np.random.default_rng(seed)
    strengths = 10.0 ** np.linspace(-6, 2, 6)
    xi = strengths[None, None] * rng.standard_normal((25, 1, 6))
    labels = xi[:, 0] @ (rng.standard_normal(6) / strengths)
    single = SinglePath(xi, labels, 2, 1e-3, 1.0, (1.0, 0.1, 1.0))
    layers = Layers((1, 1), (1.0, 1.0, 1.0), (1.0, 0.1, 1.0))
    kappa, vectors = np.linalg.eigh(xi[:, 0] @ xi[:, 0].T / 6)

    def action_at(U, width):
        # The general entropy; the energy in its eigenbasis, where U over 22 decades is no matter of rounding.
        V, total = np.array([[U]]), U * np.maximum(kappa, 0) + 1e-3
        energy = (np.log(total) + (vectors.T @ labels) ** 2 / total).sum()
        return entropy(V, eliminate(V, layers), layers) + energy / width

    for width in (0.3, 3.0, 300.0):
        found = single.minimise(width)
        scan = [action_at(U, width) for U in 10.0 ** np.linspace(-6, 16, 400)]
        assert found.action <= min(scan) + 1e-12 * abs(found.action)
        assert found.gradient_norm < 1e-6


def test_without_data_or_at_infinite_width_it_is_the_prior():
    xi, labels = data()
    single = SinglePath(xi, labels, 2, 0.2, (0.7, 1.2, 0.9, 1.1), (2.0, 0.5, 1.0))
    limit = single.minimise(np.inf)
    np.testing.assert_allclose(limit.U, 1.2 * 0.9 * 1.1, rtol=1e-14)
    np.testing.assert_allclose(np.ravel(limit.inner), [0.9 * 1.1, 1.1], rtol=1e-14)
    assert limit.gradient_norm == 0
    assert limit.words == "Gaussian-process limit"
    nothing = SinglePath(0 * xi, 0 * labels, 2, 0.2, (0.7, 1.2, 0.9, 1.1)).minimise(5.0)
    np.testing.assert_allclose(nothing.U, 1.2 * 0.9 * 1.1, rtol=1e-12)


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_the_problem_uses_it(shape):
    rng = np.random.default_rng(1)
    network = asx.AttentionPaths(query_key=[rng.normal(size=(1, 5, 5)) for _ in range(2)])
    tokens, labels = rng.normal(size=(30, 4, 5)), np.sign(rng.normal(size=shape))
    problem = asx.PathPosterior(network, tokens, labels, 0.1, width_ratios=(1.0, 2.0, 0.5))
    theory = asx.solve(problem, width=[4.0, 50.0, np.inf], progress=False)
    single = SinglePath(problem.attended, labels, 2, 0.1, 1.0, (1.0, 2.0, 0.5))
    for width in (4.0, 50.0, np.inf):
        assert theory.order_parameter.sel(width=width).values.item() == single.minimise(width).U.item()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xi": np.ones((5, 2, 3))}, r"xi must have shape \(any, 1, any\)"),
        ({"labels": np.ones(4)}, r"labels must have shape \(5,?\)"),
        ({"layers": 0}, "layers must be an integer of at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be positive, got 0"),
        ({"width_ratios": (1.0, 1.0, 1.0)}, "width_ratios must be 2 numbers"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"xi": np.ones((5, 1, 3)), "labels": np.ones(5), "layers": 1, "temperature": 0.1} | change
    with pytest.raises(ValueError, match=message):
        SinglePath(**given)


def log_convolution(a, b):
    """Logarithm of the convolution of exp(a) and exp(b): the tails, which carry the posterior, are kept."""
    pairs = [(np.arange(max(0, n - len(b) + 1), min(n, len(a) - 1) + 1), n) for n in range(len(a) + len(b) - 1)]
    return np.array([logsumexp(a[i] + b[n - i]) for i, n in pairs])


@pytest.mark.parametrize("width", [50.0, 200.0])
def test_unequal_widths_against_the_exact_posterior(width):
    # Without any limit U is a product of Gamma variables, one per layer, and Y given U is Gaussian.
    variances, ratios, temperature = (0.7, 1.2, 0.9, 1.1), (1.0, 0.4, 2.0), 0.5
    xi, labels = data(examples=60, features=40)
    labels = 2 * labels
    x = np.arange(-2.0, 3.0, 0.02)
    first, *others = (0.5 * r * width * (x - np.exp(x)) for r in ratios)
    log_p, log_u = first, np.log(np.prod(variances[1:])) + 3 * x[0]
    for other in others:
        log_p = log_convolution(log_p, other)
    log_u = log_u + 0.02 * np.arange(len(log_p))
    kappa, vectors = np.linalg.eigh(variances[0] * xi[:, 0] @ xi[:, 0].T / 40)
    noise = np.exp(log_u)[:, None] * np.maximum(kappa, 0) + temperature
    log_p = log_p - 0.5 * (np.log(noise) + (vectors.T @ labels) ** 2 / noise).sum(axis=1)
    exact = np.average(log_u, weights=np.exp(log_p - log_p.max()))
    single = SinglePath(xi, labels, 2, temperature, variances, ratios)
    found = np.log(single.minimise(width).U.item())
    assert abs(found - np.log(single.minimise(np.inf).U.item())) > 0.5
    # The saddle leaves out fluctuations: the mean logarithm of a layer's Gamma variable is 1/N_l below zero.
    left_out = sum(1 / (r * width) for r in ratios)
    assert abs(found - exact) < left_out
    equal = SinglePath(xi, labels, 2, temperature, variances).minimise(width)
    assert abs(np.log(equal.U.item()) - exact) > 1.5 * left_out
