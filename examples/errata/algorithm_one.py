"""Message passing as printed learns the first of two attention layers only in some runs.

    python examples/errata/algorithm_one.py

It takes a minute on two cores. Published: Troiani et al., arXiv:2502.00901, Fig. 2 top: one run of Algorithm 1 at
alpha = 1.2, D = 1000, which learns layer 2 and then layer 1. With other data and starts the measured variances may
leave the line V = I - Q before the overlap of layer 1 has grown. If the layers enter one after the other, with
variances from state evolution, layer 1 is learned.
"""

import numpy as np

import asymptotix as asx


def main() -> None:
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
    print("published: layer 1 is learned after layer 2; cosine of layer 1 with the truth after 40 iterations:")
    algorithms = {"Algorithm 1": asx.GAMP.algorithm1(iterations=40), "in stages": asx.GAMP(iterations=40)}
    for name, algorithm in algorithms.items():
        runs = asx.simulate(problem, algorithm, alpha=1.2, dim=1000, seeds=8, progress=False)
        cosines = np.sqrt(abs(runs.overlap.values[:, 0, 0]))
        listed = ", ".join(f"{cosine:.3f}" for cosine in cosines)
        print(f"{name}: {listed}; learned in {(cosines > 0.5).sum()} of {len(cosines)} runs")


if __name__ == "__main__":
    main()
