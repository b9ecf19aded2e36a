"""Spectra of the learned weights for Fig. 1 of arXiv:2509.24914v1: laws, zeros, bulks, and Adam's spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from scipy.optimize import root_scalar

import asymptotix as asx

from .making.claims import PublishedFigure
from .making.drawing import BLUE, ORANGE, PUBLISHED
from .making.record import Claim
from .misprints import printed_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..attention_index.spectra.learned import LearnedSpectrum
    from ..core.result import Result

#: A singular value of an experiment counts as zero below the point under which theory's law has this share of its
#: non-zero mass. Such a point is needed because the law's density starts at zero, without a lower edge. A larger share
#: counts more small values as zeros, a smaller one fewer of the numerical zeros.
SHARE_OF_SMALL = 0.005


def singular_values(runs: Result) -> np.ndarray:
    """Return the singular values of W/(m d)^{1/4}, W being d x m, of all runs pooled, in ascending order."""
    return np.sort(np.sqrt(np.maximum(runs.ds["eigenvalues"].values.ravel(), 0.0)))


def edge(law: LearnedSpectrum) -> float:
    """Return the point below which a measured singular value counts as zero; see SHARE_OF_SMALL."""
    goal, top = law.atom + SHARE_OF_SMALL * law.rank, largest_value(law)
    return float(root_scalar(lambda rho: float(law.singular_value_cdf(rho)) - goal, bracket=(0.0, top)).root)


def largest_value(law: LearnedSpectrum) -> float:
    return float(np.sqrt(law.scale * (law.convolution.edges[-1, 1] - law.eps)))


def right_bulk(law: LearnedSpectrum) -> float:
    """Return the mass of the rightmost bulk of the law; NaN if there is only one bulk."""
    edges = law.convolution.edges
    return law.convolution.moments(float(edges[-1, 0])).mass if len(edges) > 1 else np.nan


def measured(laws: dict[float, LearnedSpectrum], found: dict[float, np.ndarray]) -> xr.Dataset:
    """Return shares of zeros, Kolmogorov distances from our and the printed law, and numbers of bulks, by alpha.

    ``laws`` is alpha -> theory's law, ``found`` alpha -> ascending singular values of Adam.
    """
    rows = {"edge": [], "zeros_theory": [], "zeros_adam": [], "distance": [], "distance_printed": [], "bulks": []}
    for alpha, law in laws.items():
        begin, values = edge(law), found[alpha]
        rows["edge"].append(begin)
        rows["zeros_theory"].append(law.atom)
        rows["zeros_adam"].append(float(np.mean(values <= begin)))
        rows["distance"].append(law.kolmogorov_distance(values, zeros_below=begin))
        rows["distance_printed"].append(printed_law(law).kolmogorov_distance(values, zeros_below=begin))
        rows["bulks"].append(law.bulks)
    return xr.Dataset({name: ("alpha", column) for name, column in rows.items()}, coords={"alpha": list(laws)})


def right_bulks(theory: Result) -> xr.DataArray:
    """Return the mass of the rightmost bulk at every alpha of a theory; NaN where there is only one bulk."""
    masses = [right_bulk(theory.sel(alpha=alpha).spectrum()) for alpha in theory.ds["alpha"].values]
    return xr.DataArray(masses, dims="alpha", coords={"alpha": theory.ds["alpha"].values})


def draw(axis: Axes, law: LearnedSpectrum, target: asx.MarchenkoPastur, values: np.ndarray, zeros: float) -> None:
    """Draw theory's law, the printed law, the target's law and the histogram of Adam's singular ``values``.

    The legend has the masses at zero (``zeros`` is Adam's); a stem marks that of theory's law.
    """
    top = max(largest_value(law), largest_value(printed_law(law)), np.sqrt(target.largest), values[-1])
    rho = np.linspace(1e-4, 1.02 * top, 900)
    counts, ends = np.histogram(values[values > edge(law)], bins=26, range=(0.0, float(rho[-1])))
    axis.stairs(counts / (len(values) * np.diff(ends)), ends, fill=True, color="0.8", label=f"Adam, zeros {zeros:.3f}")
    density = law.singular_value_density(rho)
    axis.plot(rho, density, color=BLUE, label=f"theory, zeros {law.atom:.3f}")
    axis.plot(rho, printed_law(law).singular_value_density(rho), ":", color=PUBLISHED, label="eq. (13) as printed")
    below, above = target.bulk
    inner = np.clip((rho**2 - below) * (above - rho**2), 0, None)
    true = np.sqrt(target.kappa0 * inner) / (np.pi * rho)  # 2 rho mu_0(rho^2)
    axis.plot(rho, true, "--", lw=1.3, color=ORANGE, label=f"target, zeros {target.zero_mass:.3f}")
    height = 1.15 * max(float(np.quantile(density, 0.99)), float(true.max()))
    axis.plot([0, 0], [0, 0.75 * height], color=BLUE, lw=2.2)
    axis.plot([0], [0.75 * height], "^", color=BLUE, ms=6)
    axis.set(xlabel=r"singular value of $W/(md)^{1/4}$", ylabel="density", ylim=(0, 1.5 * height))
    axis.legend(fontsize=8, loc="upper right")


def claims(said: PublishedFigure, found: xr.Dataset) -> list[Claim]:
    """Judge the paper's claims on the spectra by the dataset that `measured` returns."""
    ours, theirs = found["distance"].values, found["distance_printed"].values
    bulks = found["bulks"].values.astype(int).tolist()
    where = ", ".join(f"{alpha:g}" for alpha in found["alpha"].values)
    zeros, adam = found["zeros_theory"].values, _listed(found["zeros_adam"].values)
    farther = theirs > ours
    law = False if farther.all() else None if farther.any() else True  # small samples scatter: not decided
    distances = f"{_listed(ours)} with the factor Σ̂/m̂ that (13) lacks"
    split = None if max(bulks) == 1 else bulks[0] == 1 and bulks[-1] == 2
    return [
        said("spectrum-law", law, distances, where=where, printed=_listed(theirs)),
        said("two-bulks", split, f"{', '.join(map(str, bulks))} at α = {where}"),
        said("zero-values", zeros.min(), f"{_listed(zeros)} of d at α = {where} (Adam: {adam})"),
    ]


def _listed(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
