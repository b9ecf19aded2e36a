"""Thresholds of arXiv:2509.24914v1, each from the printed formula, compared with the library's thresholds."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.optimize import root_scalar

import asymptotix as asx

from .making.claims import PublishedFigure
from .making.record import Claim
from .training_curves import attention


def interpolation(rank: float, noise: float, tokens: int = 2) -> float:
    """Return the interpolation threshold alpha by eq. (16) as printed; J and its derivative are the library's."""
    target = asx.MarchenkoPastur(rank)
    goal = target.mean_square + noise / 2

    def excess(delta: float) -> float:
        found = target.convolution(delta).moments(0.0)
        return found.J - 0.5 * delta * found.J_delta - goal

    delta = float(root_scalar(excess, bracket=(1e-6, 10.0)).root)
    return target.convolution(delta).moments(0.0).J_delta / (2 * delta * (tokens**2 + tokens - 2))


def factorized_recovery(rank: float, tokens: int = 2) -> float:
    """Return alpha of exact recovery with S = W W^T by eqs. (17) and (18), for 0 < rank/d = ``rank`` < 1."""

    def condition(c: float) -> float:
        return _semicircle(1, c) - c * _semicircle(0, c) + c / (1 - rank)

    root = float(root_scalar(condition, bracket=(1e-12, 2.0), xtol=1e-14).root)
    bracket = 1 - (1 - rank) ** 2 * (_semicircle(2, root) - root * _semicircle(1, root))
    return bracket / (tokens**2 + tokens - 2)


def bayes_recovery(rank: float, tokens: int = 2) -> float:
    """Return alpha of Bayes-optimal recovery, k (2 - k)/(T^2 + T - 2) with k = ``rank`` up to 1 and T tokens.

    Boncoraglio et al., arXiv:2506.01582.
    """
    return rank * (2 - rank) / (tokens**2 + tokens - 2)


def _semicircle(power: int, x: float) -> float:
    """Integrate t^power over the semicircle law on [-2, x]; t = 2 sin(theta) makes the integrand smooth."""
    angle = np.arcsin(min(x, 2.0) / 2)
    at, weight = np.polynomial.legendre.leggauss(60)
    a = 0.5 * (angle - np.pi / 2) + 0.5 * (angle + np.pi / 2) * at
    return float(0.5 * (angle + np.pi / 2) * (weight @ ((2 * np.sin(a)) ** power * 2 * np.cos(a) ** 2)) / np.pi)


def claims(said: PublishedFigure, found: xr.Dataset) -> list[Claim]:
    """Judge each printed formula, evaluated independently, by the thresholds ``found`` of `along_ranks`."""
    half = float(found["full"].sel(rank=0.5, method="nearest"))
    ranks = found["rank"].values[(found["rank"] < 1).values]
    noisy = asx.thresholds(asx.RiskMinimization(attention()), progress=False)
    few = np.array([1e-5, 1e-6])
    slope = (np.diff(np.log([factorized_recovery(rank) for rank in few])) / np.diff(np.log(few))).item()
    made = [
        said("full-recovery", half),
        said("noisy-interpolation", float(noisy.interpolation), formula=interpolation(0.5, 0.5)),
    ]
    formulas = (
        ("factorized-recovery", "factorized", factorized_recovery),
        ("bayes-recovery", "bayes", bayes_recovery),
        ("noiseless-interpolation", "interpolation", lambda rank: interpolation(rank, 1e-9)),
    )
    for claim, name, formula in formulas:
        away = float(abs(found[name].sel(rank=ranks).values - [formula(rank) for rank in ranks]).max())
        made.append(said(claim, away, f"differs by at most {away:.1g}"))
    gap = f"full/factorised grows as κ₀^−{slope:.3f} at κ₀ = 1e-5 to 1e-6"
    earlier = bool((found["factorized"] < found["full"]).sel(rank=ranks).all())
    made.append(said("growing-gap", earlier and abs(slope - 1) < 0.02, gap))
    return made


def along_ranks(ranks: np.ndarray) -> xr.Dataset:
    """Return the library's four thresholds alpha of Fig. 3 right, each (rank,), for targets of rank ``ranks`` x d."""

    def along(kind: type, name: str, **options: str) -> list[float]:
        models = [attention(float(rank), 0.0) for rank in ranks]
        return [float(asx.thresholds(kind(model, **options), progress=False)[name]) for model in models]

    found = {
        "full": along(asx.RiskMinimization, "exact_recovery", parameterization="full"),
        "interpolation": along(asx.RiskMinimization, "interpolation"),
        "factorized": along(asx.RiskMinimization, "exact_recovery"),
        "bayes": along(asx.BayesOptimal, "exact_recovery"),
    }
    return xr.Dataset({name: ("rank", values) for name, values in found.items()}, coords={"rank": ranks})
