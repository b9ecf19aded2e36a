"""The second threshold of two attention layers hardly depends on the skip; the published one falls to 0.196.

    python examples/errata/second_threshold.py

It takes a minute on two cores. Published: Troiani et al., arXiv:2502.00901, Section 3.1 ("about 0.79") and the released
data of Fig. 1 right. Message passing at skip 4 decides: by the published threshold layer 1 would be learned at
alpha = 0.5, and it is not.
"""

import asymptotix as asx

RELEASED = {0.1: 0.422, 0.5: 0.755, 1.0: 0.794, 2.0: 0.513, 4.0: 0.196}


def main() -> None:
    problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1))
    found = asx.thresholds(problem, skip=list(RELEASED), which="weak_recovery", tolerance=5e-3, progress=False)
    for skip, released in RELEASED.items():
        row = found.ds.sel(skip=skip).isel(index=0)
        print(f"skip {skip:g}: published {released:g}, found {row.weak_recovery:.4f} ± {row.weak_recovery_err:.4f}")
    strong = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=4.0))
    runs = asx.simulate(strong, asx.GAMP(iterations=40), alpha=[0.5, 0.9], dim=500, seeds=4, progress=False)
    for alpha, overlaps in zip(runs.alpha.values, runs.overlap.values, strict=True):
        listed = ", ".join(f"{overlap:.3f}" for overlap in overlaps[:, 0, 0])
        print(f"message passing at skip 4, alpha = {alpha:g}, D = 500: overlap of layer 1 {listed}")


if __name__ == "__main__":
    main()
