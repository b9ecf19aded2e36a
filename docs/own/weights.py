"""Weights of your own: a head of a transformer, trained elsewhere, and what the theory of paths says of it."""

import jax
import jax.numpy as jnp
import numpy as np

import asymptotix as asx

FEATURES, HEADS, KEY, WIDTH = 8, 2, 4, 16


def sequences(count, seed):
    """Six tokens of noise. One has the mark (its last feature), and the sign of its first feature is the label."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((count, 6, FEATURES))
    tokens[..., -1] = 0.0
    tokens[np.arange(count), rng.integers(6, size=count), -1] = 2.0
    return tokens, np.sign(tokens[tokens[..., -1] > 0][:, 0])


def output(weights, tokens):
    """Multi-head attention as transformers have it, read at the mean over tokens; every matrix is (out, in)."""
    q = jnp.einsum("hgi,bti->bhtg", weights["query"], tokens)
    k = jnp.einsum("hgi,bsi->bhsg", weights["key"], tokens)
    attention = jax.nn.softmax(q @ k.swapaxes(-1, -2) / KEY**0.5, axis=-1)  # queries before keys
    embedded = tokens @ weights["embedding"].T
    values = jnp.einsum("hoi,bsi->bhso", weights["value"], embedded)
    return (attention @ values).sum(1).mean(1) @ weights["readout"] / HEADS**0.5


def trained(tokens, labels, steps=300, rate=0.05):
    """Gradient descent with momentum on the squared error and a little weight decay: stands for your training."""
    rng = np.random.default_rng(0)
    shapes = {"query": (HEADS, KEY, FEATURES), "key": (HEADS, KEY, FEATURES), "embedding": (WIDTH, FEATURES),
              "value": (HEADS, WIDTH, WIDTH), "readout": (WIDTH,)}  # fmt: skip
    weights = {name: jnp.asarray(rng.standard_normal(shape) / shape[-1] ** 0.5) for name, shape in shapes.items()}

    def loss(weights):
        decay = sum((w**2).sum() for w in weights.values())
        return ((output(weights, tokens) - labels) ** 2).mean() + 1e-3 * decay

    step = jax.jit(jax.grad(loss))
    speed = jax.tree.map(jnp.zeros_like, weights)
    for _ in range(steps):
        speed = jax.tree.map(lambda v, g: 0.9 * v - rate * g, speed, step(weights))
        weights = jax.tree.map(jnp.add, weights, speed)
    return {name: np.asarray(w, float) for name, w in weights.items()}


if __name__ == "__main__":
    weights = trained(*sequences(2000, seed=1))
    test, test_labels = sequences(2000, seed=2)
    right = np.mean(np.sign(output(weights, test)) == test_labels)
    print(f"the trained network: {right:.2f} of its answers are right")

    network = asx.AttentionPaths.from_queries_and_keys([weights["query"]], [weights["key"]], scaling="fan_in")
    inputs, labels = sequences(200, seed=3)
    problem = asx.PathPosterior(network, inputs, labels, temperature=0.1)
    theory = asx.solve(problem, width=[WIDTH, np.inf], progress=False)
    for width, accuracy in zip(theory.width.values, theory.evaluate(test, test_labels).accuracy.values, strict=True):
        print(f"values learned from 200 sequences at width {width:g}: {accuracy:.2f}")
    print("scores of the heads, theory: ", asx.head_scores(theory.sel(width=WIDTH)).values.round(2)[0])

    values = asx.Weights(weights["embedding"], [weights["value"]], weights["readout"])
    U = asx.empirical_order_parameter(values, scaling="fan_in")
    print("scores of the heads, trained:", asx.head_scores(U, heads=network).values.round(2)[0])
