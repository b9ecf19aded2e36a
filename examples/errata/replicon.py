"""Replica symmetry fails at some points: the replicon condition, eq. (10) of arXiv:2509.24914v1, does not always hold.

Section 3 there concludes from runs of AMP and Adam that the condition is satisfied. At inverse temperature 2, noise 0.5
and weight decay 0.01, one of the curves of Fig. 5, it is violated around alpha = 0.8; at inverse temperature 1 it is
not violated.
"""

import warnings

import asymptotix as asx


def main(alphas: tuple[float, ...] = (0.5, 0.75, 0.8, 0.9)) -> None:
    print("replicon with its numerical error, published: below one; and share of the data where the proximal map jumps")
    for beta in (1.0, 2.0):
        problem = asx.RiskMinimization(asx.AttentionIndex(beta=beta, noise=0.5), weight_decay=0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asx.ConvergenceWarning)  # the warning repeats the table
            theory = asx.solve(problem, alpha=list(alphas)).ds
        for alpha in alphas:
            at = theory.sel(alpha=alpha)
            print(
                f"beta = {beta:g}, alpha = {alpha:g}: {float(at['replicon']):.3f} +- {float(at['replicon_err']):.3f}, "
                f"jumps on {100 * float(at['jump_weight']):.1f} % of the data"
            )


if __name__ == "__main__":
    main()
