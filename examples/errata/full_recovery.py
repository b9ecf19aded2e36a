"""How many samples determine a symmetric S without factorisation: alpha = 1/4 for two tokens, not 1/2.

Published: arXiv:2509.24914v1, Section 4 and eq. (68): |S - S_0|^2 = Q_0 (1 - 2 alpha), so that recovery is exact from
alpha = 1/2 on. The softmax of two tokens shows two differences of pre-activations per sample, which are linear in S.
Without noise the limit of vanishing weight decay is their solution of least norm, computed here by least squares.
"""

import numpy as np

import asymptotix as asx


def relative_error(alpha: float, dim: int, rng: np.random.Generator) -> float:
    """Return |S - S_0|^2 / |S_0|^2 of the least-norm S, for n = alpha d^2 pairs of Gaussian tokens, S_0 of rank d/2."""
    factors = rng.normal(size=(dim, dim // 2))
    truth = factors @ factors.T / np.sqrt(dim * dim / 2)
    upper = np.triu_indices(dim)
    weight = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))  # coordinates in which |S|_F is the norm
    x, y = rng.normal(size=(2, round(alpha * dim**2), dim))
    rows = []
    for one, other in ((x, y), (y, x)):  # (h_aa - h_ab) sqrt(d) = x_a S x_a - Tr S - x_a S x_b
        form = np.einsum("ni,nj->nij", one, one - other) - np.eye(dim)
        rows.append((0.5 * (form + form.transpose(0, 2, 1)))[:, *upper] * weight)
    design, goal = np.concatenate(rows), truth[upper] * weight
    found = np.linalg.lstsq(design, design @ goal, rcond=1e-10)[0]
    return float(((found - goal) ** 2).sum() / (goal**2).sum())


def main(dim: int = 30) -> None:
    rng = np.random.default_rng(0)
    problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2), parameterization="full")
    print(f"threshold: published 0.5, library {float(asx.thresholds(problem).exact_recovery):g}")
    print(f"alpha  published 1 - 2 alpha  1 - 4 alpha  least-norm S at d = {dim}")
    for alpha in (0.05, 0.1, 0.15, 0.2, 0.24, 0.27, 0.3, 0.4):
        error = relative_error(alpha, dim, rng)
        print(f"{alpha:5.2f}  {1 - 2 * alpha:21.2f}  {max(0, 1 - 4 * alpha):11.2f}  {error:.3g}")


if __name__ == "__main__":
    main()
