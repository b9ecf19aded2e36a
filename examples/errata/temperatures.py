"""A smoother softmax does not always learn better: without noise the order of temperatures reverses as alpha grows.

Published: arXiv:2509.24914v1, Appendix E and Fig. 5: more smoothing (smaller beta = beta_0) systematically yields a
lower test error for a given alpha, also without noise. Here weight decay is 0.01, with two tokens and a target of rank
d/2.
"""

import asymptotix as asx


def main(dim: int = 60, seeds: int = 4) -> None:
    alphas, tried = [0.1, 0.5, 1.0, 2.0, 4.0], [1.0, 2.0]
    print("test errors without noise, beta = 0.5 and beta = 1; published: the first is lower")
    found, runs = [], []
    for beta in (0.5, 1.0):
        problem = asx.RiskMinimization(asx.AttentionIndex(beta=beta, noise=0.0), weight_decay=0.01)
        found.append(asx.solve(problem, alpha=alphas).ds["test_error"])
        runs.append(asx.simulate(problem, asx.Adam(), alpha=tried, dim=dim, seeds=seeds).ds["test_error"])
    for alpha in alphas:
        low, high = (float(errors.sel(alpha=alpha)) for errors in found)
        print(f"theory, alpha = {alpha:g}: {low:.4g}, {high:.4g}{'' if low < high else '   <- the second is lower'}")
    for alpha in tried:
        share = (runs[0] / runs[1]).sel(alpha=alpha)
        error = float(share.std(ddof=1)) / seeds**0.5
        print(f"Adam at d = {dim}, alpha = {alpha:g}: first/second = {float(share.mean()):.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()
