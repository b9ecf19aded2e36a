"""Beyond the papers: phase diagrams of training, spectra of power-law targets, thresholds over all shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from .drawing import BLUE, GREEN, ORANGE, PINK, experiment_points, grid_with, mark, panels, theory_line
from .parts import Parts
from .record import Findings, agreement
from .registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..core.result import Result

#: The task of the training paper.
NOISE, RANK, DECAY = 0.5, 0.5, 0.01


@figure(
    "atlas/phase-training",
    shows="Test error of training over samples and weight decay, and over samples and rank of the target",
    source="asymptotix",
    quick=Size(3.0, 1.0, {"alphas": 16, "decays": 12, "ranks": 8, "optima": 8}),
    paper=Size(40.0, 1.0, {"alphas": 48, "decays": 40, "ranks": 32, "optima": 24}),
)
def phase_training(parts: Parts, *, alphas: int, decays: int, ranks: int, optima: int) -> tuple[Figure, Findings]:
    """Two maps of the test error, with the best weight decay and the thresholds as lines."""
    alpha = np.geomspace(0.05, 10, alphas)
    problem = _training()
    over_decay = parts.solve("over_weight_decay", problem, alpha=alpha, weight_decay=np.geomspace(1e-4, 0.3, decays))
    over_rank = parts.solve("over_rank", problem, alpha=alpha, kappa0=np.linspace(0.05, 1.0, ranks))
    best = parts.dataset(
        "best_weight_decay", {"optima": optima, "task": repr(problem)}, lambda: _best_weight_decays(problem, optima)
    )
    thresholds = parts.dataset("thresholds", {"points": 40}, _thresholds_by_rank)
    picture, (left, right) = panels(1, 2, size=(12.0, 4.8))
    _map(left, over_decay, "weight_decay")
    left.plot(best.alpha, best.weight_decay, "o-", color="black", ms=3.5, label="best weight decay")
    left.set(yscale="log", ylim=(1e-4, 0.3), ylabel=r"weight decay  $\lambda$")
    at = float(thresholds.interpolation.sel(rank=RANK, method="nearest"))
    mark(left, at, "interpolation", "white", height=0.4)
    left.legend(loc="lower right", facecolor="white", framealpha=0.8, frameon=True)
    _map(right, over_rank, "kappa0")
    right.plot(thresholds.interpolation, thresholds["rank"], ":", color="white", lw=2.2, label="interpolation, noise 0.5")
    right.plot(thresholds.bayes, thresholds["rank"], "--", color="white", lw=1.6, label="exact recovery, no noise, best")
    right.set(ylabel=r"rank of the target  $\kappa_0$", ylim=(0.05, 1.0), xlim=(alpha[0], alpha[-1]))
    right.legend(loc="upper right", facecolor="0.3", labelcolor="white", frameon=True)
    inside = best.alpha.values[best.inside.values]
    failed = int((~over_decay.ds["converged"]).sum() + (~over_rank.ds["converged"]).sum())
    largest = max(float(r.ds["replicon"].max()) for r in (over_decay, over_rank))
    remarks = [
        f"The best weight decay is inside the bounds 1e-5 and 1 at {len(inside)} of {len(best.alpha)} alphas.",
        f"{failed} points did not converge (crosses); the largest replicon is {largest:.2f}, above one replica symmetry "
        "fails.",
    ]
    return picture, Findings(remarks=remarks)


def _training(**changed: Any) -> Any:
    task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(RANK), noise=NOISE)
    return asx.RiskMinimization(task, **({"weight_decay": DECAY} | changed))


def _best_weight_decays(problem: Any, count: int) -> xr.Dataset:
    alpha = np.geomspace(0.05, 10, count)
    found = [asx.optimum(problem, "test_error", "weight_decay", bounds=(1e-5, 1.0), alpha=float(a)) for a in alpha]
    columns = {"weight_decay": [f.at for f in found], "test_error": [f.value for f in found]}
    inside = [f.inside for f in found]
    return xr.Dataset({n: ("alpha", c) for n, c in (columns | {"inside": inside}).items()}, coords={"alpha": alpha})


def _thresholds_by_rank() -> xr.Dataset:
    ranks = np.linspace(0.025, 1.0, 40)
    noisy = [asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(float(k)), noise=NOISE) for k in ranks]
    clean = [asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(float(k)), noise=0.0) for k in ranks]
    found = {
        "interpolation": [float(asx.thresholds(asx.RiskMinimization(m), progress=False).interpolation) for m in noisy],
        "bayes": [float(asx.thresholds(asx.BayesOptimal(m), progress=False).exact_recovery) for m in clean],
    }
    return xr.Dataset({name: ("rank", values) for name, values in found.items()}, coords={"rank": ranks})


def _map(axis: Axes, result: Result, field: str) -> None:
    """The test error as colours with level lines; points that did not converge are crossed out."""
    values = result.ds["test_error"].transpose(field, "alpha")
    x, y = values["alpha"].values, values[field].values
    image = axis.pcolormesh(x, y, values.values, cmap="viridis", shading="gouraud", rasterized=True)
    lines = axis.contour(x, y, values.values, levels=np.arange(0.05, 0.6, 0.05), colors="white", linewidths=0.6)
    axis.clabel(lines, fmt="%.2f", fontsize=7.5)
    failed = np.argwhere(~result.ds["converged"].transpose(field, "alpha").values)
    if len(failed):
        axis.plot(x[failed[:, 1]], y[failed[:, 0]], "x", color="black", ms=4)
    axis.grid(visible=False)
    axis.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$")
    figure = axis.figure
    figure.colorbar(image, ax=axis, label=r"test error  $E\|y-A\|_F^2$")  # pyright: ignore[reportAttributeAccessIssue]


@figure(
    "atlas/power-law",
    shows="A target with power-law eigenvalues hands its tail on to what is learned",
    source="asymptotix; conjectured by Boncoraglio et al., arXiv:2509.24914v1, Section 4",
    quick=Size(2.5, 1.0, {"dims": [60, 100], "seeds": 3, "alphas": 12}),
    paper=Size(60.0, 2.0, {"dims": [100, 200], "seeds": 16, "alphas": 24}, gpu_minutes=2.0),
)
def power_law(parts: Parts, *, dims: list[int], seeds: int, alphas: int) -> tuple[Figure, Findings]:
    """Learned spectra at three alphas on double logarithmic axes, the local exponent, and the learning curve."""
    target = asx.PowerLaw(exponent=3.0, cutoff=100.0)
    problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, target=target, noise=0.1), weight_decay=DECAY)
    trained = [0.2, 1.0, 4.0]
    theory = parts.solve("theory", problem, alpha=grid_with(np.geomspace(0.05, 20, alphas), trained))
    runs = parts.simulate("adam", problem, asx.Adam(), alpha=trained, dim=dims, seeds=seeds)
    picture, (left, middle, right) = panels(1, 3, size=(14.0, 4.4))
    for alpha, color, style in zip(trained, (ORANGE, BLUE, GREEN), ("-", "--", "-."), strict=True):
        law = theory.sel(alpha=alpha).spectrum()
        s = np.geomspace(0.02, 0.97 * law.scale * law.convolution.edges[-1, 1], 200)
        density = law.eigenvalue_density(s)
        left.loglog(s, density, style, color=color, label=rf"theory, $\alpha={alpha:g}$")
        found = runs.ds["eigenvalues"].sel(alpha=alpha).isel(dim=-1).values.ravel()
        _log_histogram(left, found[np.isfinite(found)], color)
        middle.semilogx(s, -np.gradient(np.log(density.clip(1e-300)), np.log(s)), style, color=color)
    middle.axhline(3.0, color="0.35", ls=":", label="target's exponent")
    left.set(xlabel="eigenvalue  $s$ of the learned $S$", ylabel="density", ylim=(1e-5, None))
    middle.set(xlabel="eigenvalue  $s$", ylabel=r"local exponent  $-d\log\rho/d\log s$", ylim=(0, 8))
    theory_line(right, theory, "test_error", label="theory", color=ORANGE)
    for k, (size, marker) in enumerate(zip(dims, "os", strict=False)):
        experiment_points(right, runs.ds["test_error"], label=f"Adam, $d={size}$", color=BLUE, marker=marker, dim=k)
    right.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$", ylabel=r"test error  $E\|y-A\|_F^2$")
    for axis in (left, middle, right):
        axis.legend()
    exponent = _tail_exponent(theory.sel(alpha=trained[-1]).spectrum())
    remarks = [f"Local exponent of the theory at three tenths of the largest eigenvalue, alpha = 4: {exponent:.2f}."]
    found = [agreement("test error, Adam", parts.compare(theory, runs), "test_error")]
    return picture, Findings(found, remarks=remarks)


def _tail_exponent(law: Any) -> float:
    s = 0.3 * law.scale * law.convolution.edges[-1, 1] * np.array([0.98, 1.02])
    return float(-np.diff(np.log(law.eigenvalue_density(s)))[0] / np.diff(np.log(s))[0])


def _log_histogram(axis: Axes, values: np.ndarray, color: str) -> None:
    """Density of what was learned in bins that grow, with the error of counting."""
    edges = np.geomspace(0.05, values.max() * 1.05, 16)
    counts, _ = np.histogram(values, edges)
    centre, scale = np.sqrt(edges[1:] * edges[:-1]), 1 / (len(values) * np.diff(edges))
    seen = counts > 0
    axis.errorbar(
        centre[seen], (counts * scale)[seen], (np.sqrt(counts) * scale)[seen], fmt="o", ms=3.5, color=color,
        markerfacecolor="white", capsize=2, zorder=3,
    )  # fmt: skip
