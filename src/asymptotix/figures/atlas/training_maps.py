"""Figures beyond the papers: phase diagrams of training, spectra of power-law targets, thresholds by shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from ...core.plot import PALETTE
from ..making.drawing import BLUE, GREEN, ORANGE, experiment_points, grid_with, mark, panels, theory_line
from ..making.parts import Parts
from ..making.record import Findings, agreement
from ..making.registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ...attention_index.spectra.learned import LearnedSpectrum
    from ...core.result import Result

#: Parameters of the task in the training paper, arXiv:2509.24914v1.
NOISE, RANK, DECAY = 0.5, 0.5, 0.01


@figure(
    "atlas/phase-training",
    shows="Test error of training over samples and weight decay, and over samples and rank of the target",
    source="asymptotix",
    quick=Size(2.0, 1.0, {"alphas": 16, "decays": 12, "ranks": 8}),
    paper=Size(20.0, 1.0, {"alphas": 48, "decays": 40, "ranks": 32}),
)
def phase_training(parts: Parts, *, alphas: int, decays: int, ranks: int) -> tuple[Figure, Findings]:
    """Draw maps of the test error over weight decay and over rank; ``alphas``, ``decays``, ``ranks`` are counts."""
    alpha = np.geomspace(0.05, 10, alphas)
    problem = _training()
    over_decay = parts.solve("over_weight_decay", problem, alpha=alpha, weight_decay=np.geomspace(1e-4, 0.3, decays))
    over_rank = parts.solve("over_rank", problem, alpha=alpha, kappa0=np.linspace(0.05, 1.0, ranks))
    settings = {"alphas": alphas, "decays": decays, "task": repr(problem)}
    best = parts.dataset("best_weight_decay", settings, lambda: _best_weight_decays(over_decay))
    thresholds = parts.dataset("thresholds", {"points": 40}, _thresholds_by_rank)
    picture, (left, right) = panels(1, 2, size=(12.0, 4.8))
    _map(left, over_decay, "weight_decay")
    left.plot(best.alpha, best.weight_decay, "o-", color="black", ms=3.5, label="best weight decay")
    left.set(yscale="log", ylim=(1e-4, 0.3), ylabel=r"weight decay  $\lambda$")
    at = float(thresholds.interpolation.sel(rank=RANK, method="nearest"))
    mark(left, at, "interpolation", "black", height=0.45)
    left.legend(loc="lower right", facecolor="white", framealpha=0.8, frameon=True)
    _map(right, over_rank, "kappa0")
    lines = (("interpolation", ":", "interpolation, noise 0.5"), ("bayes", "--", "exact recovery, no noise, best"))
    for name, style, label in lines:
        right.plot(thresholds[name], thresholds["rank"], style, color="white", lw=2.0, label=label)
    right.set(ylabel=r"rank of the target  $\kappa_0$", ylim=(0.05, 1.0), xlim=(alpha[0], alpha[-1]))
    right.legend(loc="upper right", facecolor="0.3", labelcolor="white", frameon=True)
    inside = best.alpha.values[best.inside.values]
    failed = int((~over_decay.ds["converged"]).sum() + (~over_rank.ds["converged"]).sum())
    largest = max(float(r.ds["replicon"].max()) for r in (over_decay, over_rank))
    remarks = [
        f"The best weight decay is inside the map at {len(inside)} of {len(best.alpha)} alphas.",
        f"{failed} points did not converge (crosses); the largest replicon is {largest:.2f}: above one, replica "
        "symmetry fails.",
    ]
    return picture, Findings(remarks=remarks)


def _training() -> asx.RiskMinimization:
    task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(RANK), noise=NOISE)
    return asx.RiskMinimization(task, weight_decay=DECAY)


def _best_weight_decays(over_decay: Result) -> xr.Dataset:
    """Return the best weight decay, its test error and whether it is ``inside`` the bounds, at every other alpha.

    The search is between the grid neighbours of the least value on the grid: elsewhere S may be zero.
    """
    rows = []
    for alpha in over_decay.alpha.values[::2]:
        errors = over_decay.ds["test_error"].sel(alpha=alpha).values
        decays = over_decay.weight_decay.values
        least = int(np.clip(np.nanargmin(errors), 1, len(decays) - 2))
        bounds = float(decays[least - 1]), float(decays[least + 1])
        found = asx.optimum(over_decay.problem, "test_error", "weight_decay", bounds=bounds, alpha=float(alpha))
        rows.append((float(alpha), found.at, found.value, found.inside))
    alpha, at, value, inside = map(np.array, zip(*rows, strict=True))
    columns = {"weight_decay": at, "test_error": value, "inside": inside}
    return xr.Dataset({name: ("alpha", column) for name, column in columns.items()}, coords={"alpha": alpha})


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
    """Draw the test error over alpha and ``field`` as colours with level lines; cross out unconverged points."""
    values = result.ds["test_error"].transpose(field, "alpha")
    x, y = values["alpha"].values, values[field].values
    from matplotlib.colors import LogNorm

    shades: Any = {"cmap": "viridis", "norm": LogNorm(0.06, 0.5), "shading": "gouraud", "rasterized": True}
    image = axis.pcolormesh(x, y, values.values, **shades)
    levels = [0.08, 0.09, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
    lines = axis.contour(x, y, values.values, levels=levels, colors="white", linewidths=0.6)
    axis.clabel(lines, fmt="%.2f", fontsize=7.5)
    failed = np.argwhere(~result.ds["converged"].transpose(field, "alpha").values)
    if len(failed):
        axis.plot(x[failed[:, 1]], y[failed[:, 0]], "x", color="black", ms=4)
    axis.grid(visible=False)
    axis.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$")
    bar: Any = axis.figure
    ticks = [0.07, 0.1, 0.15, 0.2, 0.3, 0.4]
    bar.colorbar(image, ax=axis, ticks=ticks, format="%.2f", label=r"test error  $E\|y-A\|_F^2$").minorticks_off()


@figure(
    "atlas/power-law",
    shows="A target with power-law eigenvalues hands its tail on to what is learned",
    source="asymptotix; conjectured by Boncoraglio et al., arXiv:2509.24914v1, Section 4",
    quick=Size(2.5, 1.0, {"dims": [60, 100], "seeds": 3, "alphas": 12}),
    paper=Size(60.0, 2.0, {"dims": [100, 200], "seeds": 16, "alphas": 24}, gpu_minutes=2.0),
)
def power_law(parts: Parts, *, dims: list[int], seeds: int, alphas: int) -> tuple[Figure, Findings]:
    """Draw learned spectra, their local exponent, and the test error; theory has ``alphas`` alphas."""
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
    middle.set(xlabel="eigenvalue  $s$", ylabel=r"local exponent  $-d\log\rho/d\log s$", ylim=(0, 6))
    theory_line(right, theory, "test_error", label="theory", color=ORANGE)
    for k, (size, marker) in enumerate(zip(dims, "os", strict=False)):
        experiment_points(right, runs.ds["test_error"], label=f"Adam, $d={size}$", color=BLUE, marker=marker, dim=k)
    right.set(xscale="log", xlabel=r"samples  $\alpha = n/d^2$", ylabel=r"test error  $E\|y-A\|_F^2$")
    for axis in (left, middle, right):
        axis.legend()
    exponent = _tail_exponent(theory.sel(alpha=trained[-1]).spectrum())
    remarks = [
        f"At alpha = 4 the theory's density falls like s^-{exponent:.2f} at three tenths of the largest eigenvalue.",
        "The largest of d eigenvalues is where the law has a mass of 1/d above it: few directions carry much of the "
        "target, and with little data finite systems are far from the limit.",
    ]
    found = [agreement("test error, Adam", parts.compare(theory, runs), "test_error")]
    return picture, Findings(found, remarks=remarks)


def _tail_exponent(law: LearnedSpectrum) -> float:
    s = 0.3 * law.scale * law.convolution.edges[-1, 1] * np.array([0.98, 1.02])
    return float(-np.diff(np.log(law.eigenvalue_density(s)))[0] / np.diff(np.log(s))[0])


def _log_histogram(axis: Axes, values: np.ndarray, color: str) -> None:
    """Draw the density of the eigenvalues ``values`` in logarithmic bins, with counting errors."""
    edges = np.geomspace(0.05, values.max() * 1.05, 16)
    counts, _ = np.histogram(values, edges)
    centre, scale = np.sqrt(edges[1:] * edges[:-1]), 1 / (len(values) * np.diff(edges))
    seen = counts > 0
    axis.errorbar(
        centre[seen], (counts * scale)[seen], (np.sqrt(counts) * scale)[seen], fmt="o", ms=3.5, color=color,
        markerfacecolor="white", capsize=2, zorder=3,
    )  # fmt: skip


#: Shapes (layers, tokens, heads, tied). Those of SMALL_SHAPES take seconds, the others of ALL_SHAPES minutes. Shapes of
#: more than ten minutes per skip are absent: two layers, untied or with two heads; three layers with three tokens.
SMALL_SHAPES = [(1, 2, 1, True), (1, 3, 1, True), (1, 4, 1, True), (1, 2, 2, True), (1, 2, 1, False), (2, 2, 1, True)]
ALL_SHAPES = [
    *SMALL_SHAPES, (1, 2, 3, True), (1, 3, 1, False), (1, 3, 2, True), (1, 4, 1, False), (2, 3, 1, True),
    (2, 4, 1, True), (3, 2, 1, True),
]  # fmt: skip


@figure(
    "atlas/thresholds",
    shows="Weak-recovery thresholds of deep attention over depth, tokens, heads and skip",
    source="asymptotix",
    quick=Size(0.5, 1.0, {"shapes": SMALL_SHAPES, "skips": [0.25, 0.5, 1.0, 2.0, 4.0], "tolerance": 1e-2}),
    paper=Size(20.0, 4.0, {"shapes": ALL_SHAPES, "skips": [0.5, 1.0, 2.0], "tolerance": 1e-2}),
)
def thresholds(
    parts: Parts, *, shapes: list[tuple[int, int, int, bool]], skips: list[float], tolerance: float
) -> tuple[Figure, Findings]:
    """Draw weak-recovery thresholds against the skip; ``shapes`` are (layers, tokens, heads, tied)."""
    found = {}
    for layers, tokens, heads, tied in shapes:
        model = asx.DeepAttention(layers=layers, tokens=tokens, heads=heads, tied=tied)
        over = {"skip": skips} if layers > 1 else {}  # the last layer has none
        name = f"layers{layers}_tokens{tokens}_heads{heads}_{'tied' if tied else 'untied'}"
        problem = asx.BayesOptimal(model)
        found[name] = parts.thresholds(name, problem, which="weak_recovery", tolerance=tolerance, **over)
    table = parts.dataset("atlas", {"shapes": shapes, "skips": skips}, lambda: _one_table(found, np.array(skips)))
    numbers = sorted({tokens for _, tokens, _, _ in shapes})
    picture, axes = panels(1, len(numbers), size=(4.6 * len(numbers), 4.4), sharey=True)
    kinds = list(dict.fromkeys((layers, heads, tied) for layers, _, heads, tied in shapes))
    for axis, tokens in zip(axes, numbers, strict=True):
        _thresholds_of(axis, table.sel(shape=table.tokens == tokens), kinds)
        axis.axhline(1 / (tokens * (tokens + 1)), color="0.35", ls=":", lw=1.2, label="bound $1/M(M+1)$")
        axis.set(xscale="log", yscale="log", xlabel="skip  $c$", title=f"{tokens} tokens")
        axis.set_xticks(skips, [f"{skip:g}" for skip in skips])
        levels = [0.05, 0.1, 0.2, 0.5, 1.0]
        axis.set_yticks(levels, [f"{level:g}" for level in levels])
        axis.minorticks_off()
        axis.legend(fontsize=9)
    axes[0].set_ylabel(r"weak recovery  $\alpha = n/D$")
    bound = 1 / (table.tokens * (table.tokens + 1))
    below = int((table.weak_recovery + 3 * table.error < bound).where(table.tied).sum())
    unsure = [name for name, result in found.items() if not result.ok]
    ended = f"Not all points converged in {', '.join(unsure)}." if unsure else "All points converged."
    remarks = [
        "One data set: atlas.nc, with the dimensions shape, skip and index; one layer has no skip.",
        f"{below} of the thresholds of tied layers lie below the bound 1/(M(M+1)), which none can.",
        ended,
    ]
    return picture, Findings(remarks=remarks)


def _one_table(found: dict[str, Result], skips: np.ndarray) -> xr.Dataset:
    """Return all thresholds and errors as (shape, skip, index), NaN where a shape has no such index."""
    most = max(result.ds.sizes["index"] for result in found.values())
    value, error = (np.full((len(found), len(skips), most), np.nan) for _ in range(2))
    for k, result in enumerate(found.values()):
        for table, name in ((value, "weak_recovery"), (error, "weak_recovery_err")):
            table[k, :, : result.ds.sizes["index"]] = result.ds[name].values
    models = [result.problem.model for result in found.values()]  # pyright: ignore[reportAttributeAccessIssue]
    of_shape = {name: ("shape", [getattr(model, name) for model in models]) for name in ("layers", "tokens", "heads")}
    tied = ("shape", [bool(model.tied) for model in models])
    coords = {"shape": list(found), "skip": skips, **of_shape, "tied": tied}
    dims = ("shape", "skip", "index")
    return xr.Dataset({"weak_recovery": (dims, value), "error": (dims, error)}, coords=coords)


def _thresholds_of(axis: Axes, table: xr.Dataset, kinds: list[tuple[int, int, bool]]) -> None:
    """Draw one line per distinct threshold of each shape in ``table``; one layer has no skip and gets dashes.

    The colour is that of (layers, heads, tied), by its position in ``kinds``.
    """
    for k in range(table.sizes["shape"]):
        shape = table.isel(shape=k)
        words = f"{int(shape.layers)} layers" if shape.layers > 1 else "1 layer"
        words += "" if shape.heads == 1 else f", {int(shape.heads)} heads"
        words += "" if shape.tied else ", untied"
        kind = int(shape.layers), int(shape.heads), bool(shape.tied)
        color, label = PALETTE[kinds.index(kind) % len(PALETTE)], words
        levels = np.unique(np.nan_to_num(shape.weak_recovery.values.mean(0)), return_index=True)[1]
        for index in levels:
            values, errors = shape.weak_recovery.values[:, index], shape.error.values[:, index]
            if np.isfinite(values).any():
                line = "o-" if shape.layers > 1 else "--"
                axis.errorbar(table.skip, values, errors, fmt=line, ms=4, capsize=2, color=color, label=label)
                label = None
