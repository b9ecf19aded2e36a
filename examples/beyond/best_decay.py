"""The best weight decay is known beforehand: it is the square root of the noise in the field, sqrt(qhat).

    python examples/beyond/best_decay.py

At that decay the cut is at the edge of the noise, eps = 2 delta: the learned directions are kept, and no noise. For
linear attention qhat = 8 noise a with a = T(T + 1) alpha, and nothing needs to be tuned. The error at the true minimum
is smaller by a factor 1 - O((k/d)^(2/5)), where k is the number of directions above the noise.
"""

import numpy as np

import asymptotix as asx


def main() -> None:
    for dim in (10**4, 10**6):
        task = asx.AttentionIndex(target=asx.RankedPowerLaw(1.0, dim), tokens=1, activation="linear", noise=0.5)
        for samples in (1e2, 1e3):  # a d, which is n/d up to a factor of two
            alpha = 0.5 * samples / dim
            best = asx.optimal_weight_decay(asx.RiskMinimization(task), alpha, observable="estimation_error")
            rule = float(np.sqrt(16 * task.noise * alpha))
            at_rule = asx.solve(asx.RiskMinimization(task, weight_decay=rule), alpha=alpha, progress=False)
            loss = float(at_rule.estimation_error) / best.value - 1
            ratio = best.weight_decay / rule
            words = f"linear, d = {dim:.0e}, ad = {samples:.0e}: best/sqrt(qhat) = {ratio:.3f}"
            print(f"{words}, which costs {loss:.1%} of the error")
    task = asx.AttentionIndex(target=asx.RankedPowerLaw(1.0, 10**4), tokens=2, noise=0.5)
    best = asx.optimal_weight_decay(asx.RiskMinimization(task), 1e-2)
    point = asx.solve(asx.RiskMinimization(task, weight_decay=best.weight_decay), alpha=1e-2, progress=False)
    ratio = best.weight_decay / float(np.sqrt(point.qhat))
    print(f"softmax of two tokens, d = 1e+04, alpha = 0.01: best/sqrt(qhat) = {ratio:.3f}")


if __name__ == "__main__":
    main()
