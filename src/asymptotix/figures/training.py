"""The figures of Boncoraglio, Erba, Troiani, Krzakala, Zdeborova, arXiv:2509.24914v1: training single-head attention.

Marchenko-Pastur targets, n = alpha d^2 samples. Adam minimises the loss that theory treats exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

import asymptotix as asx

from .drawing import BLUE, GREEN, ORANGE, PINK, panels, published
from .parts import Parts
from .record import Findings, number_claim
from .registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "Boncoraglio et al., arXiv:2509.24914v1"


@figure(
    "training/fig3-right",
    shows="How much data exact recovery and interpolation take, against the rank of the target",
    source=f"{PAPER}, Fig. 3 right",
    quick=Size(minutes=0.2, gib=0.5, settings={"points": 40}),
    paper=Size(minutes=0.5, gib=0.5, settings={"points": 200}),
)
def fig3_right(parts: Parts, *, points: int) -> tuple[Figure, Findings]:
    """The four thresholds without noise, at vanishing weight decay, two tokens."""
    ranks = np.linspace(0.01, 1.0, points)
    found = parts.dataset("thresholds", {"points": points}, lambda: _four_thresholds(ranks))
    picture, (axis,) = panels(size=(6.0, 4.2))
    lines = (
        ("full", "exact recovery, any symmetric $S$", ORANGE, "-."),
        ("interpolation", "interpolation (unique PSD interpolator)", PINK, ":"),
        ("factorized", "exact recovery, $S=WW^T$", BLUE, "-"),
        ("bayes", "exact recovery, Bayes-optimal", GREEN, "--"),
    )
    for name, label, color, style in lines:
        axis.plot(ranks, found[name], style, color=color, label=label)
    published(axis, [ranks[0], ranks[-1]], [0.5, 0.5], "published: any symmetric $S$")
    axis.set(xlabel=r"rank of the target  $\kappa_0 = m_0/d$", ylabel=r"threshold  $\alpha = n/d^2$", ylim=(0, 0.55))
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.88))
    half = float(found["full"].sel(rank=0.5, method="nearest"))
    claims = [
        number_claim(
            "exact recovery without factorisation, two tokens",
            0.5,
            "Section 4, eq. (68)",
            half,
            0.0,
            rounding=0.005,
            script="examples/errata/full_recovery.py",
        )
    ]
    ladder = [found[name].values for name in ("bayes", "factorized", "interpolation", "full")]
    ordered = bool((np.diff(ladder, axis=0) > -1e-9).all())
    remarks = [f"Bayes-optimal ≤ factorised ≤ interpolation ≤ full at every rank: {'yes' if ordered else 'NO'}."]
    return picture, Findings(claims=claims, remarks=remarks)


def _four_thresholds(ranks: np.ndarray) -> xr.Dataset:
    def along(kind: type, name: str, **options: str) -> list[float]:
        models = [asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(float(rank)), noise=0.0) for rank in ranks]
        return [float(asx.thresholds(kind(model, **options), progress=False)[name]) for model in models]

    found = {
        "full": along(asx.RiskMinimization, "exact_recovery", parameterization="full"),
        "interpolation": along(asx.RiskMinimization, "interpolation"),
        "factorized": along(asx.RiskMinimization, "exact_recovery"),
        "bayes": along(asx.BayesOptimal, "exact_recovery"),
    }
    return xr.Dataset({name: ("rank", values) for name, values in found.items()}, coords={"rank": ranks})
