"""The law of the learned singular values: eq. (13) of arXiv:2509.24914v1 lacks a factor of Sigmahat/mhat.

The script trains one attention layer (two tokens, target of rank d/2, noise 0.5, weight decay 0.01). It compares the
singular values of W/(m d)^{1/4} with the printed law and with the law with the factor, by Kolmogorov distances and by
the mean square.
"""

from dataclasses import replace

import numpy as np

import asymptotix as asx


def main(dim: int = 60, seeds: int = 6) -> None:
    problem = asx.RiskMinimization(asx.AttentionIndex(target=asx.MarchenkoPastur(0.5), noise=0.5), weight_decay=0.01)
    alphas = [0.05, 0.1, 0.2]
    theory = asx.solve(problem, alpha=alphas)
    runs = asx.simulate(problem, asx.Adam(), alpha=alphas, dim=dim, seeds=seeds)
    print(f"Adam at d = {dim}, {seeds} runs: distance from the printed law, and from that with the factor; Tr S/d")
    for alpha in alphas:
        values = np.sqrt(np.maximum(runs.ds["eigenvalues"].sel(alpha=alpha).values.ravel(), 0))
        law = theory.sel(alpha=alpha).spectrum()
        printed = replace(law, scale=1.0)
        distances = [one.kolmogorov_distance(values) for one in (printed, law)]
        traces = [mean_square(one) for one in (printed, law)]
        print(
            f"alpha = {alpha:g}: published {distances[0]:.3f}, found {distances[1]:.3f}; "
            f"Tr S/d published {traces[0]:.4f}, found {traces[1]:.4f}, Adam {np.mean(values**2):.4f}"
        )


def mean_square(law) -> float:
    """Return the mean of the squared singular values, zeros included."""
    x, weight, _ = law.convolution.nodes(law.eps)
    return float(law.scale * (weight @ (x - law.eps)))


if __name__ == "__main__":
    main()
