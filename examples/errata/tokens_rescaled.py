"""Different numbers of tokens against a rescaled number of samples: thresholds align, test errors do not.

Published: arXiv:2509.24914v1, Fig. 6 and Appendix E: the rescaled number is n/d^2 (T(T+1)/2 - 1) = 2n/(T^2 + T - 2)d^2,
and learning curves largely align against it. The factors of n/d^2 on the two sides are the reciprocals of each other.
"""

import asymptotix as asx


def main(rescaled: float = 1.0, dim: int = 40, seeds: int = 4) -> None:
    print(" T  first factor  second factor  interpolation threshold times the first, the second")
    for T in (2, 3, 5):
        problem = asx.RiskMinimization(asx.AttentionIndex(tokens=T, noise=0.5), weight_decay=1e-3)
        first, second = T * (T + 1) / 2 - 1, 2 / (T * T + T - 2)
        at = float(asx.thresholds(problem).interpolation)
        print(f"{T:2d}  {first:12g}  {second:13.4g}  {at * first:.4f}, {at * second:.4f}")
    print(f"\nTest error at noise 0.5 and first factor times n/d^2 = {rescaled:g}; published: equal for every T")
    for T in (2, 3, 5):
        problem = asx.RiskMinimization(asx.AttentionIndex(tokens=T, noise=0.5), weight_decay=1e-3)
        nothing = asx.RiskMinimization(problem.model, weight_decay=1e3)
        alpha = rescaled / (T * (T + 1) / 2 - 1)
        theory, zero = asx.solve(problem, alpha=alpha), asx.solve(nothing, alpha=1e-3)
        runs = asx.simulate(problem, asx.Adam(), alpha=alpha, dim=dim, seeds=seeds)
        print(
            f"T = {T}: theory {float(theory.test_error):.4f}, Adam at d = {dim} {float(runs.test_error.mean()):.4f}, "
            f"S = 0 {float(zero.test_error):.4f}"
        )


if __name__ == "__main__":
    main()
