"""A narrow learner without weight decay has a best width: 3^(-1/(2 gamma)) times the directions above the noise.

    python examples/beyond/best_width.py

The target has eigenvalues s_k ~ k^-gamma at d = 10^6; attention is linear, and W has m columns. k is the number of
eigenvalues above delta, the noise in the field. A learner of the best width keeps an eigenvalue whole or not at all; at
gamma = 1 its error relates to that of the best weight decay as 3.08 to 4. The equations of a learner that is narrower
than its rank are a heuristic.
"""

import numpy as np

import asymptotix as asx

DIM, NOISE, A = 10**6, 0.5, 1e-2


def main() -> None:
    for gamma in (1.0, 1.5):
        target = asx.RankedPowerLaw(gamma, DIM)
        task = asx.AttentionIndex(target=target, tokens=1, activation="linear", noise=NOISE)
        decayed = asx.RiskMinimization(task, weight_decay=np.sqrt(8 * NOISE * A))
        reference = asx.solve(decayed, alpha=A / 2, progress=False)
        above = (target.ranks(1)[0] / float(reference.delta)) ** (1 / gamma)
        shares = 3 ** (-0.5 / gamma) * np.array([0.8, 0.9, 1.0, 1.1, 1.25])
        errors = []
        for share in shares:
            narrow = asx.RiskMinimization(task, weight_decay=0.0, width_ratio=share * above / DIM)
            errors.append(float(asx.solve(narrow, alpha=A / 2, progress=False).estimation_error))
        fit = np.polyfit(np.log(shares), np.log(errors), 2)
        best, predicted = np.exp(-fit[1] / (2 * fit[0])), 3 ** (-0.5 / gamma)
        words = f"gamma = {gamma}: best width {best:.3f} k, predicted {predicted:.3f} k"
        print(f"{words}; error {min(errors):.3e}, with the best decay {float(reference.estimation_error):.3e}")


if __name__ == "__main__":
    main()
