"""The first threshold of two attention layers: the published value is below a bound that holds for all such models.

    python examples/errata/first_threshold.py

It takes half a minute on two cores. Published: Troiani et al., arXiv:2502.00901, Section 3.1 ("about 0.14") and the
released data of Fig. 1 right. An output y shows at most zz^T of a layer's indices z of the two tokens, so that 1/alpha,
which is E|E[zz^T|y] - I|^2, is at most E|zz^T - I|^2 = M(M+1) = 6.
"""

import numpy as np

import asymptotix as asx

RELEASED = {0.1: 0.191, 0.5: 0.186, 1.0: 0.1436, 2.0: 0.112, 4.0: 0.083}


def main() -> None:
    z = np.random.default_rng(0).normal(size=(1_000_000, 2))
    squares = ((z[:, :, None] * z[:, None, :] - np.eye(2)) ** 2).sum((1, 2))
    print(f"the bound by sampling: 1/{squares.mean():.2f}, exactly 1/6 = {1 / 6:.4f}")
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1))
    found = asx.thresholds(problem, skip=list(RELEASED), which="weak_recovery", tolerance=1e-2, progress=False)
    for skip, released in RELEASED.items():
        first = float(found.weak_recovery.sel(skip=skip)[1])
        print(f"skip {skip:g}: published {released:g}, found {first:.6f}")
    strong = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=4.0))
    runs = asx.simulate(strong, asx.GAMP(iterations=30), alpha=[0.14, 0.6], dim=500, seeds=4, progress=False)
    for alpha, overlaps in zip(runs.alpha.values, runs.overlap.values, strict=True):
        listed = ", ".join(f"{overlap:.3f}" for overlap in overlaps[:, 1, 1])
        print(f"message passing at skip 4, alpha = {alpha:g}, D = 500: overlap of layer 2 {listed}")


if __name__ == "__main__":
    main()
