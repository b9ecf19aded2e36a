import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.numerics.precision import double_precision
from asymptotix.numerics.quadrature import sobol_normals
from asymptotix.sequence_index.models import rank_one as attention
from attention_inverse import preactivation_from_output
from reference_numbers import reference

ACTIVATIONS = ("softmax", "linear")
# Double precision, a few dozen operations on numbers up to about 1e3 (linear layers multiply)
ROUNDING = 1e-11


def indices(count: int, layers: int, tokens: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, layers, tokens))


def written_out(Z: np.ndarray, skip: float, activation: str) -> np.ndarray:
    """The recursion of one sample with every sum as a loop, token i mixing tokens j with weight R_ij."""
    layers, tokens = Z.shape
    B = np.eye(tokens)
    for layer in range(layers):
        u = [sum(B[i, j] * Z[layer, j] for j in range(tokens)) for i in range(tokens)]
        R = np.empty((tokens, tokens))
        for i in range(tokens):
            row = [u[i] * u[j] for j in range(tokens)]
            R[i] = row if activation == "linear" else [np.exp(x) / sum(np.exp(row)) for x in row]
        if layer == layers - 1:
            return R
        B = np.array([[skip * B[i, j] + sum(R[i, k] * B[k, j] for k in range(tokens)) for j in range(tokens)]
                      for i in range(tokens)])  # fmt: skip
    raise AssertionError


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("layers", "tokens"), [(1, 3), (2, 2), (3, 3)])
def test_output_is_the_recursion(layers, tokens, activation):
    Z = 0.6 * indices(5, layers, tokens)
    expected = [written_out(z, 0.7, activation) for z in Z]
    np.testing.assert_allclose(attention.output(Z, 0.7, activation), expected, rtol=ROUNDING, atol=ROUNDING)


def test_softmax_rows_sum_to_one():
    y = attention.output(indices(200, 3, 4), 1.0, "softmax")
    np.testing.assert_allclose(y.sum(-1), 1.0, rtol=1e-14)  # rounding of a sum of four
    assert (y >= 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("skip", [0.0, 0.3, 1.0, 4.0])
def test_rotated_closed_form_is_the_generic_forward_map(skip, activation):
    Z = indices(500, 2)
    rotated = Z @ attention.ROTATION.T
    expected = attention.last_preactivation(Z, skip, activation) @ attention.ROTATION.T
    found = attention.rotated_preactivation(rotated, skip, activation)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)


def test_closed_form_stays_finite_far_out():
    # 8.2 is the largest normal that a Sobol node can give (53 bits).
    corners = np.array(np.meshgrid(*[[-8.2, 0.0, 8.2]] * 4)).reshape(4, -1).T.reshape(-1, 2, 2)
    expected = attention.last_preactivation(corners @ attention.ROTATION, 1.0, "softmax") @ attention.ROTATION.T
    np.testing.assert_allclose(
        attention.rotated_preactivation(corners, 1.0, "softmax"), expected, rtol=ROUNDING, atol=ROUNDING
    )


def test_attention_of_rotated_preactivations():
    u = np.concatenate([indices(500, 1)[:, 0], [[0.0, 0.0], [30.0, -40.0], [-40.0, 2.0]]])
    expected = attention.attention(attention.unrotated(u), "softmax")
    # Rounding, which the exponential of a difference amplifies by its size: up to 3e3.
    found = attention.rotated_attention(u, "softmax")
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layers", [2, 3])
def test_row_stochastic_convention(layers):
    # Which side the attention matrix multiplies from shows in the distance of y from what index zero gives.
    known = reference("sequence_index")["plugin_error_at_zero_overlap"]
    count = 2**15
    y = attention.output(sobol_normals(count, 2 * layers, 3).reshape(count, layers, 2), 1.0, "softmax")
    found = ((y - 0.5) ** 2).sum((-1, -2)).mean()
    # The reference has four digits, the nodes leave about 1e-4; the transposed model is 4e-3 away.
    assert abs(found - known[f"{layers} layers"]) < 3e-4
    assert abs(found - known["2 layers, transposed"]) > 3e-3


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_preactivation_is_recovered_from_the_output_up_to_sign(activation):
    u = attention.canonical_sign(0.8 * indices(500, 1)[:, 0])
    tokens = u @ attention.ROTATION
    y = attention.activate(tokens[:, :, None] * tokens[:, None, :], activation)
    # The first entry is a root, and the second divides by it: the smallest of 500 costs three digits.
    np.testing.assert_allclose(preactivation_from_output(y, activation), u, rtol=1e-8, atol=1e-8)


def test_canonical_sign_makes_equal_what_the_output_cannot_tell_apart():
    u = indices(50, 1)[:, 0]
    np.testing.assert_array_equal(attention.canonical_sign(u), attention.canonical_sign(-u))
    assert (attention.canonical_sign(u)[:, 0] >= 0).all()


@pytest.mark.parametrize(
    ("activation", "coordinates"),
    [("softmax", [((0, 1), (1, 0))]), ("linear", [((0, 0), (0, 1)), ((1, 1), (0, 1))])],
)
def test_output_volume_is_the_jacobian_determinant(activation, coordinates):
    """For linear activation, the mean over two choices of coordinates, one for each token."""
    u = indices(40, 1, seed=2)[:, 0]
    expected = np.mean([log_determinant(u, activation, entries) for entries in coordinates], axis=0)
    # The two columns of the Jacobian nearly align where an output saturates: about 1e-10 is left there.
    np.testing.assert_allclose(attention.log_output_volume(u, activation), expected, rtol=1e-8, atol=1e-8)


def log_determinant(u: np.ndarray, activation: str, entries) -> np.ndarray:
    """log |d(y at these entries) / du| by automatic differentiation."""

    def outputs(u):
        tokens = u @ attention.ROTATION
        y = attention.activate(tokens[:, None] * tokens[None, :], activation)
        return jnp.stack([y[i, j] for i, j in entries])

    with double_precision():
        jacobian = np.array(jax.jit(jax.vmap(jax.jacfwd(outputs)))(u))
    return np.log(abs(np.linalg.det(jacobian)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_and_jax_agree_and_keep_their_kind(activation):
    Z = indices(100, 2)
    u = attention.canonical_sign(attention.rotated_preactivation(Z, 0.5, activation))
    calls = [
        (attention.output, Z, 0.5),
        (attention.last_preactivation, Z, 0.5),
        (attention.rotated_preactivation, Z, 0.5),
        (attention.rotated_attention, u),
        (attention.log_output_volume, u),
    ]
    with double_precision():
        for function, array, *skip in calls:
            plain = function(array, *skip, activation)
            traced = jax.jit(lambda x, f=function, s=skip: f(x, *s, activation))(array)
            assert isinstance(plain, np.ndarray)
            assert isinstance(traced, jax.Array)
            np.testing.assert_allclose(traced, plain, rtol=1e-9, atol=1e-9)  # rounding, amplified by exponentials
