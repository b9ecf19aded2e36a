"""Without weight decay more samples increase the error: it grows as n^(2/5) long before interpolation.

    python examples/beyond/overfitting_branch.py

The interpolator of least trace fits the noise with the bulk of its spectrum. For linear attention and eigenvalues
s_k ~ k^-1.5 at d = 10^9 this adds the error K (noise/2) a^(2/5), K = (16/(105 pi)) (15 pi/8)^(7/5), while the error of
unlearned directions falls as a power. The best weight decay removes this branch completely.
"""

import numpy as np

import asymptotix as asx

DIM, GAMMA, NOISE = 10**9, 1.5, 0.5


def main() -> None:
    task = asx.AttentionIndex(target=asx.RankedPowerLaw(GAMMA, DIM), tokens=1, activation="linear", noise=NOISE)
    amplitude = 16 / (105 * np.pi) * (15 * np.pi / 8) ** 1.4
    grid = np.geomspace(7e-5, 1.3e-3, 5)
    errors, best = [], []
    for a in grid:
        for found, decay in ((errors, 0.0), (best, np.sqrt(8 * NOISE * a))):
            problem = asx.RiskMinimization(task, weight_decay=decay)
            found.append(float(asx.solve(problem, alpha=a / 2, progress=False).estimation_error))
    slopes = np.gradient(np.log(errors), np.log(grid))
    for a, error, regularised, slope in zip(grid, errors, best, slopes, strict=True):
        leading = amplitude * 0.5 * NOISE * a**0.4
        words = f"a = {a:.1e}: error {error:.3e}, predicted {leading + regularised:.3e}, slope {slope:+.3f} (2/5)"
        print(f"{words}; with the best decay {regularised:.1e}")


if __name__ == "__main__":
    main()
