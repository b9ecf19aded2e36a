"""A link of your own: y = |z| exp(-|z|/2), of which an observer cannot tell the sign of z = w.x/sqrt(D)."""

import jax.numpy as jnp

import asymptotix as asx


def folded(z):
    """Any function that JAX can trace, of the P indices z = W x / sqrt(D); it returns a number or an array."""
    return jnp.abs(z[0]) * jnp.exp(-0.5 * jnp.abs(z[0]))


if __name__ == "__main__":
    problem = asx.BayesOptimal(asx.MultiIndex(folded, indices=1))
    print("channel:", problem.theory.channel.description)
    limits = asx.thresholds(problem, progress=False)
    print(f"learned above alpha = {float(limits.weak_recovery.max()):.4f}")
    theory = asx.solve(problem, alpha=[0.5, 1.0, 1.5], progress=False)
    print("overlap:", theory.overlap.values.ravel().round(3).tolist())
    print("how it ended:", theory.status.values.tolist())
    runs = asx.simulate(problem, asx.GAMP(), alpha=[1.5], dim=500, seeds=2, progress=False)
    print("message passing at alpha = 1.5:", runs.overlap.values.ravel().round(3).tolist())
