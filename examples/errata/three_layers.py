"""Three attention layers: layers 1 and 2 do not share a threshold.

    python examples/errata/three_layers.py

It takes a minute or two on two cores. Published: Troiani et al., arXiv:2502.00901, Section 3.2: after layer 3 "the
shallower layers seem to share the same weak recovery threshold, and are learned sensibly at the same rate". We find two
thresholds (0.98 and 1.125; examples/depth_three.py computes them). Between them state evolution has learned layer 1 and
nothing of layer 2.
"""

import numpy as np

import asymptotix as asx


def main() -> None:
    problem = asx.BayesOptimal(asx.DeepAttention(layers=3, tokens=2, rank=1, skip=1.0))
    theory = asx.solve(problem, alpha=1.05, tolerance=2e-2, progress=False)
    overlaps, errors = (np.diag(theory[name].values.reshape(3, 3)) for name in ("overlap", "overlap_err"))
    print("published: layers 1 and 2 are learned from the same alpha on, at the same rate")
    for layer, (overlap, error) in enumerate(zip(overlaps, errors, strict=True), start=1):
        print(f"found at alpha = 1.05: overlap of layer {layer} {overlap:.4f} ± {error:.4f}")
    print(f"state evolution: {theory.status.item()}")


if __name__ == "__main__":
    main()
