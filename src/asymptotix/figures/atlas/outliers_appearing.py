"""Figures beyond the papers: directions of the target that become outliers of the learned spectrum, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from ...core.plot import PALETTE
from ..making.drawing import BLUE, GREEN, ORANGE, experiment_points, grid_with, mark, panels
from ..making.parts import Parts
from ..making.record import Findings
from ..making.registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...core.result import Result

NOISE, DECAY, SPIKES = 0.5, 0.01, (9.0, 6.0)
TRAINED = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Number of leading directions shown for a target with eigenvalues s_k ~ 1/k.
SHOWN = 6


@figure(
    "atlas/outliers",
    shows="Two directions of the target that stand out of the learned spectrum: theory, and Adam at two sizes",
    source="asymptotix; announced in arXiv:2509.24914v2",
    quick=Size(3.0, 1.0, {"dims": [50, 100], "seeds": 4, "alphas": 16}),
    paper=Size(60.0, 2.0, {"dims": [100, 200], "seeds": 8, "alphas": 32}, gpu_minutes=1.5),
)
def outliers(parts: Parts, *, dims: list[int], seeds: int, alphas: int) -> tuple[Figure, Findings]:
    """Draw learned eigenvalues and overlaps of two spikes on a bulk of half rank, by theory and Adam.

    ``alphas`` is theory's number of alphas; ``dims`` are two dimensions.
    """
    grid = grid_with(np.geomspace(0.01, 1.0, alphas), TRAINED)
    picture, (left, middle, right) = panels(1, 3, size=(14.0, 4.4))
    distances, remarks = [], []
    for dim, style, marker in zip(dims, ("--", "-"), "so", strict=True):
        problem = _spiked(dim)
        theory = parts.solve(f"theory_{dim}", problem, alpha=grid)
        runs = parts.simulate(f"adam_{dim}", problem, asx.Adam(), alpha=TRAINED, dim=dim, seeds=seeds)
        found = theory.outliers()
        for axis, name in ((left, "eigenvalue"), (middle, "overlap")):
            for k, color in enumerate((ORANGE, BLUE)):
                label = rf"$\theta = {SPIKES[k]:g}$, $d = {dim}$" if axis is left else None
                axis.plot(grid, found[name].where(found["visible"]).isel(spike=k), style, color=color, label=label)
                experiment_points(axis, runs.ds[f"outlier_{name}"], label="", color=color, marker=marker, spike=k)
        distances.append(_distances(found, runs))
        mean = distances[-1].mean(("alpha", "spike"))
        words = f"d = {dim}: eigenvalues are off by {float(mean.eigenvalue):.1%}"
        remarks.append(f"{words} and overlaps by {float(mean.overlap):.4f} on average over alpha and spikes.")
    limits = parts.thresholds("thresholds", _spiked(dims[-1]), which=("outlier",))
    for k, color in enumerate((ORANGE, BLUE)):
        mark(middle, float(limits.ds["outlier"].isel(spike=k)), "visible from", color, height=0.5)
    together: Any = xr.concat(distances, xr.DataArray(dims, dims="dim"))
    _draw_distances(right, together)
    left.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$", ylabel="learned eigenvalue  $s$")
    middle.set(
        xscale="log", xlabel=r"samples  $\alpha = n/d^2$", ylabel=r"squared overlap  $\langle \hat u, u \rangle^2$"
    )
    left.legend(title="lines: theory, points: Adam")
    return picture, Findings(remarks=remarks)


def _spiked(dim: int) -> asx.RiskMinimization:
    target = asx.Spiked(asx.MarchenkoPastur(0.5), SPIKES, dim=dim)
    return asx.RiskMinimization(asx.AttentionIndex(tokens=2, target=target, noise=NOISE), weight_decay=DECAY)


def _at(found: xr.Dataset, alphas: Sequence[float] | np.ndarray) -> xr.Dataset:
    """Return theory ``found`` at the given alphas, which may differ from its grid by rounding."""
    return found.sel(alpha=list(alphas), method="nearest").assign_coords(alpha=list(alphas))


def _distances(found: xr.Dataset, runs: Result) -> xr.Dataset:
    """Return distances (alpha, spike) of Adam's means over seeds from theory ``found``.

    ``eigenvalue`` is relative, ``overlap`` absolute.
    """
    at, measured = _at(found, TRAINED), runs.ds.mean("seed")
    return xr.Dataset(
        {
            "eigenvalue": abs(measured["outlier_eigenvalue"] / at["eigenvalue"] - 1),
            "overlap": abs(measured["outlier_overlap"] - at["overlap"]),
        }
    ).drop_vars("dim", errors="ignore")


def _draw_distances(axis: Axes, distances: xr.Dataset) -> None:
    mean = distances.mean("spike")
    for k, alpha in enumerate(TRAINED):
        axis.loglog(
            mean["dim"], mean["overlap"].sel(alpha=alpha), "o-", color=PALETTE[k], label=rf"$\alpha = {alpha:g}$"
        )
    axis.set_xticks(mean["dim"].values, [f"{dim}" for dim in mean["dim"].values])
    axis.minorticks_off()
    axis.set(xlabel="dimension  $d$", ylabel="overlap: |Adam - theory|")
    axis.legend()


@figure(
    "atlas/sequential",
    shows="Directions of a target with eigenvalues 1/k are learned one by one; best width against best weight decay",
    source="asymptotix; announced in arXiv:2509.24914v2",
    quick=Size(4.0, 1.0, {"dim": 60, "seeds": 4, "points": 18, "large_dim": 10**6}),
    paper=Size(30.0, 2.0, {"dim": 200, "seeds": 6, "points": 24, "large_dim": 10**6}, gpu_minutes=1.0),
)
def sequential(parts: Parts, *, dim: int, seeds: int, points: int, large_dim: int) -> tuple[Figure, Findings]:
    """Draw overlaps of leading directions (theory, Adam) and errors at the best width and the best weight decay.

    Overlaps are in dimension ``dim``, errors in ``large_dim``; ``points`` is theory's number of alphas.
    """
    per_dim = np.array([10.0, 30.0, 100.0])
    target = asx.RankedPowerLaw(1.0, dim)
    problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, target=target, noise=NOISE), weight_decay=DECAY)
    trained = per_dim / dim
    theory = parts.solve("theory", problem, alpha=grid_with(np.geomspace(2.0, 300.0, points) / dim, trained))
    runs = parts.simulate("adam", problem, asx.Adam(), alpha=trained, dim=dim, seeds=seeds)
    settings = {"dim": large_dim, "points": points}
    best = parts.dataset("best", settings, partial(_best_width_and_decay, large_dim, max(3, points // 6)))
    picture, (left, right) = panels(1, 2, size=(12.0, 4.6))
    found = theory.outliers()
    for k in range(SHOWN):
        color = PALETTE[k % len(PALETTE)]
        left.plot(dim * found["alpha"], found["overlap"].isel(spike=k), color=color, label=f"$k = {k + 1}$")
        experiment_points(left, runs.ds["outlier_overlap"], label="", color=color, stretch=dim, spike=k)
    left.set(xscale="log", xlabel="samples per dimension  $n/d$", ylabel=r"squared overlap with direction $k$")
    left.set_title(rf"$s_k \propto 1/k$, $d = {dim}$; lines: theory, points: Adam", loc="right", fontsize=10)
    left.legend(ncols=2, loc="lower right", fontsize=9)
    for name, color, label in (("decay", ORANGE, "best weight decay"), ("width", BLUE, "best width, no decay")):
        right.semilogx(best["samples"], best[name] / best["unit"], "o-", color=color, label=label)
    right.axhline(4.0, color=ORANGE, ls=":", label="$A = 4$")
    right.axhline(3**-0.5 * (2 + 1 / 3 + 3), color=BLUE, ls=":", label=r"$3^{-1/2}(2 + 1/3 + 3) = 3.08$")
    right.axhline(2 - 1 / 3 + 1, color=GREEN, ls="-.", label="Bayes-optimal $8/3$")
    right.set(xlabel=rf"samples  $a d$,  linear attention, $d = 10^{{{round(np.log10(large_dim))}}}$")
    right.set_ylabel(r"error over  $C\, (\Delta/2ad)^{1/2}$")
    right.legend(fontsize=9)
    close = abs(runs.ds["outlier_overlap"].mean("seed") - _at(found, trained)["overlap"]).isel(spike=slice(3))
    remarks = [
        f"First three directions, Adam against theory: overlaps within {float(close.max()):.3f}, at n/d = 100 within "
        f"{float(close.isel(alpha=-1).max()):.3f}; at n of order d the theory is not exact.",
        "Overlaps below about d^(-1/3) are smeared in a finite system: what is not learned yet does not measure zero.",
    ]
    return picture, Findings(remarks=remarks)


def _best_width_and_decay(dim: int, points: int) -> xr.Dataset:
    """Return errors of linear attention at the best weight decay, and without decay at the best width, by samples.

    ``unit`` is the scale C (noise/(2 samples))^{1/2} of the errors; ``points`` is the number of samples n/d.
    """
    target = asx.RankedPowerLaw(1.0, dim)
    task = asx.AttentionIndex(tokens=1, target=target, activation="linear", noise=NOISE)
    samples = np.geomspace(100.0, 1e4 if dim > 10**5 else 1e3, points)
    rows = []
    for alpha in 0.5 * samples / dim:
        decay = asx.optimal_weight_decay(asx.RiskMinimization(task), alpha, observable="estimation_error").value
        rows.append((decay, _best_width_error(task, float(alpha), float(target.ranks(1)[0]), dim)))
    decay, width = np.array(rows).T
    unit = target.ranks(1)[0] / np.sqrt(dim) * np.sqrt(0.5 * NOISE / samples)
    columns = {"decay": decay, "width": width, "unit": unit}
    return xr.Dataset({name: ("samples", column) for name, column in columns.items()}, coords={"samples": samples})


def _best_width_error(task: asx.AttentionIndex, alpha: float, largest: float, dim: int) -> float:
    """Return the least error over whole numbers of columns; ``largest`` is the target's largest eigenvalue."""
    above = largest / np.sqrt(0.25 * NOISE / alpha)  # number of s_k = largest/k above the noise, nearly

    def error(columns: int) -> float:
        narrow = asx.RiskMinimization(task, weight_decay=0.0, width_ratio=columns / dim)
        return float(asx.solve(narrow, alpha=alpha, progress=False).estimation_error)

    width = max(1, round(3**-0.5 * above))
    known = {width: error(width)}
    step = max(1, width // 8)
    while True:
        for near in {max(1, width - step), width + step} - known.keys():
            known[near] = error(near)
        best = min(known, key=lambda columns: known[columns])
        if best == width and step == 1:
            return known[best]
        width, step = best, step if best != width else max(1, step // 2)
