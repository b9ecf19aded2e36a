"""Directions of a target with eigenvalues 1/k are learned one by one: the k-th from about n ~ d k^2 samples on.

    python examples/beyond/one_by_one.py

Attention is linear with one token and has the best weight decay sqrt(8 Delta a), a = 2 n/d^2, at d = 10^6. The k-th
direction, with eigenvalue s_k, detaches where a s_k^2 = Delta/2 + R(a); R is the error, a curve given by theory. For
large k the error R is small, and n is Delta d^2 / (4 s_1^2) times k^2.
"""

import numpy as np

import asymptotix as asx

DIM, NOISE = 10**6, 0.5


def main() -> None:
    target = asx.RankedPowerLaw(1.0, DIM)
    task = asx.AttentionIndex(tokens=1, activation="linear", target=target, noise=NOISE)
    a = np.geomspace(2e-6, 2e-2, 17)
    errors = []
    for one in a:
        problem = asx.RiskMinimization(task, weight_decay=float(np.sqrt(8 * NOISE * one)))
        errors.append(float(asx.solve(problem, alpha=one / 2, progress=False).estimation_error))
    # Find where the largest unlearned eigenvalue, a curve over samples, passes the eigenvalue of direction k.
    edge = np.sqrt((NOISE / 2 + np.array(errors)) / a)
    for k in (1, 3, 10, 30):
        s = float(target.ranks(1)[0]) / k
        samples = np.exp(np.interp(-np.log(s), -np.log(edge), np.log(a))) / 2 * DIM
        print(f"direction {k}: n/d = {samples:.3g}, over k^2: {samples / k**2:.3f}")
    print(f"far out, over k^2: {NOISE * DIM / (4 * float(target.ranks(1)[0]) ** 2):.3f}")


if __name__ == "__main__":
    main()
