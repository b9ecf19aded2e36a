"""Training attention with other losses, temperatures, targets and penalties: one table from exact theory.

    python examples/other_losses.py

Every line is a separate problem in the limit n = alpha d^2; nothing is simulated.
"""

import jax.numpy as jnp

import asymptotix as asx

ALPHA = 1.0


def main() -> None:
    target = asx.MarchenkoPastur(0.5)
    softmax = asx.AttentionIndex(tokens=2, target=target, noise=0.5)
    cases = {
        "softmax, squared loss": asx.RiskMinimization(softmax),
        "softmax, cross entropy": asx.RiskMinimization(softmax, loss="cross_entropy", weight_decay=0.05),
        "softmax, a loss of one's own": asx.RiskMinimization(softmax, loss=huber),
        "learner twice as cold as the target": asx.RiskMinimization(
            asx.AttentionIndex(tokens=2, target=target, noise=0.5, beta=2.0, target_beta=1.0)
        ),
        "linear attention": asx.RiskMinimization(
            asx.AttentionIndex(tokens=2, target=target, noise=0.5, activation="linear")
        ),
        "symmetric matrix, squared norm": asx.RiskMinimization(softmax, parameterization="full"),
        "trace and squared norm together": asx.RiskMinimization(softmax, penalty=lambda t: t + t**2),
        "power-law target": asx.RiskMinimization(
            asx.AttentionIndex(tokens=2, target=asx.PowerLaw(3.0, kappa0=0.5, mean_square=1.5), noise=0.5)
        ),
    }
    print(f"alpha = {ALPHA:g}\n{'':38s}test error  estimation error    rank  replicon  status")
    for name, problem in cases.items():
        point = asx.solve(problem, alpha=ALPHA, progress=False)
        numbers = [float(point[key]) for key in ("test_error", "estimation_error", "rank", "replicon")]
        test, estimation, rank, replicon = numbers
        print(f"{name:38s}{test:10.5f}{estimation:18.5f}{rank:8.3f}{replicon:10.3f}  {point.status.item()}")
    best = asx.optimum(cases["softmax, squared loss"], "test_error", "weight_decay", bounds=(1e-3, 1.0), alpha=ALPHA)
    bayes = float(asx.solve(asx.BayesOptimal(softmax), alpha=ALPHA, progress=False).test_error)
    print(f"\nbest weight decay {best.at:.4f}: test error {best.value:.5f}; no learner can do better than {bayes:.5f}")


def huber(y, h):
    """Return the squared error of the attention matrix, growing linearly beyond 0.1."""
    attention = jnp.exp(h) / jnp.exp(h).sum(axis=-1, keepdims=True)
    return jnp.sum(0.02 * (jnp.sqrt(1 + (attention - y) ** 2 / 0.01) - 1))


if __name__ == "__main__":
    main()
