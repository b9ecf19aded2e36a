"""The black line of Fig. 1 left, called the Bayes error, is the error of the point estimate.

    python examples/errata/bayes_error.py

It takes seconds, with NumPy alone. Published: Troiani et al., arXiv:2502.00901, Fig. 1 left, whose caption refers to
eq. (11); the released values below the first threshold are 0.386 to 0.388. Nothing is learned there. The best
prediction, the posterior mean, is then the mean of y, while a network with the estimate W = 0 predicts 1/2 everywhere.
"""

import numpy as np


def row_softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def outputs(samples: int, skip: float = 1.0) -> np.ndarray:
    """Return attention matrices (samples, 2, 2) of two layers with Gaussian indices z_1, z_2 of two tokens."""
    z1, z2 = np.random.default_rng(0).normal(size=(2, samples, 2))
    mixing = skip * np.eye(2) + row_softmax(z1[:, :, None] * z1[:, None, :])
    u = np.einsum("sij,sj->si", mixing, z2)
    return row_softmax(u[:, :, None] * u[:, None, :])


def main() -> None:
    y = outputs(1_000_000)
    posterior_mean = ((y - y.mean(0)) ** 2).sum((1, 2)).mean()
    plugin = ((y - 0.5) ** 2).sum((1, 2)).mean()
    print(f"published as Bayes error: 0.387; found: {posterior_mean:.4f}; of the point estimate: {plugin:.4f}")


if __name__ == "__main__":
    main()
