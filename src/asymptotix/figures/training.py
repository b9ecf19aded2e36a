"""The figures of Boncoraglio, Erba, Troiani, Krzakala, Zdeborova, arXiv:2509.24914v1: training single-head attention.

Targets are Marchenko-Pastur matrices; there are n = alpha d^2 samples. Adam minimises the same loss as the theory.
The thresholds of Fig. 3 are in training_thresholds.py, the spectra of Fig. 1 in training_spectra.py, Figs. 4 to 6
in training_variants.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

import asymptotix as asx

from ..core.compare import Comparison
from . import training_spectra as spectra
from . import training_thresholds as thresholds
from .making.claims import PublishedFigure
from .making.drawing import BLUE, GREEN, ORANGE, PINK, experiment_points, grid_with, mark, mosaic, panels, published
from .making.parts import Parts
from .making.record import Claim, Findings, agreement
from .making.registry import figure_of_paper
from .training_curves import (
    LOOKS,
    SAMPLES,
    TEST_ERROR,
    TRAIN_LOSS,
    Curve,
    Trials,
    agreements,
    attention,
    draw,
    draw_replicon,
    largest,
    learning_curve,
    plain,
    replicon_claim,
    unfinished,
    where_unproven,
)
from .training_variants import fig4, fig5, fig6

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@figure_of_paper("training/fig1")
def fig1(
    parts: Parts,
    said: PublishedFigure,
    *,
    spectra_of: Sequence[tuple[float, int, int]],
    alphas: Sequence[float],
    dims: Sequence[int],
    seeds: int,
    points: int,
) -> tuple[Figure, Findings]:
    """Draw learned spectra, test errors at two widths, and ranks: weight decay 0.01, noise 0.5, target of rank d/2.

    ``spectra_of`` has (alpha, dim, runs) of every spectrum. Adam runs at ``alphas``, theory has ``points`` alphas.
    """
    layout = ["aaabbbcccddd", "eeeeeeffffff"]
    picture, axes = mosaic(layout, size=(14.5, 7.6), height_ratios=[1, 1.1])
    problem, grid = asx.RiskMinimization(attention(), weight_decay=0.01), np.geomspace(0.05, 40, points)
    found = _fig1_spectra(parts, axes[:4], problem, spectra_of)
    trials = Trials(alphas, dims, seeds)
    curves = [
        learning_curve(
            parts, f"width_{kappa:g}", replace(problem, width_ratio=kappa), label=rf"width $\kappa={kappa:g}$",
            look=look, grid=grid, trials=trials,
        )
        for look, kappa in enumerate((1.0, 0.75))
    ]  # fmt: skip
    draw(axes[4], curves, "test_error", TEST_ERROR)
    axes[4].legend(title=f"lines: theory; points: {trials.words}", title_fontsize=9)
    ranks = _fig1_ranks(parts, axes[5], grid)
    claims = [*spectra.claims(said, found), said("right-bulk", *ranks), _monotone(said, curves[0])]
    remarks = said.remarks(rank=float(curves[1].theory.ds["rank"].max()), unproven=where_unproven(curves))
    return picture, Findings(list(agreements(parts, curves, "test_error", "train_loss")), claims, remarks)


def _fig1_spectra(
    parts: Parts, axes: Sequence[Axes], problem: asx.RiskMinimization, spectra_of: Sequence[tuple[float, int, int]]
) -> xr.Dataset:
    """Draw the spectrum of each (alpha, dim, runs); return the numbers of `training_spectra.measured` on them."""
    theory = parts.solve("spectra_theory", problem, alpha=[alpha for alpha, _, _ in spectra_of])
    laws = {alpha: theory.sel(alpha=alpha).spectrum() for alpha, _, _ in spectra_of}
    values = {}
    for alpha, dim, seeds in spectra_of:
        runs = parts.simulate(f"spectrum_{alpha:g}_adam", problem, asx.Adam(), alpha=alpha, dim=dim, seeds=seeds)
        values[alpha] = spectra.singular_values(runs)
    found = parts.dataset("spectra", {"spectra_of": spectra_of}, lambda: spectra.measured(laws, values))
    target = problem.model.target
    assert isinstance(target, asx.MarchenkoPastur)
    for axis, (alpha, dim, seeds) in zip(axes, spectra_of, strict=True):
        spectra.draw(axis, laws[alpha], target, values[alpha], float(found["zeros_adam"].sel(alpha=alpha)))
        axis.set_title(rf"$\alpha={alpha:g}$  ($d={dim}$, {seeds} runs)", fontsize=10.5)
    return found


def _fig1_ranks(parts: Parts, axis: Axes, grid: np.ndarray) -> tuple[float, str]:
    """Draw rank and right bulk for three ranks of the target; return their largest distance, and a text on it."""
    worst, splits = 0.0, []
    for (color, style, _), rank in zip(LOOKS, (0.2, 0.5, 0.8), strict=False):
        theory = parts.solve(f"rank_{rank:g}_theory", asx.RiskMinimization(attention(rank)), alpha=grid)
        bulk = spectra.right_bulks(theory)
        axis.plot(grid, theory.ds["rank"], style, color=color, label=rf"$\kappa_0={rank:g}$")
        axis.plot(grid, bulk, "|-", color=color, lw=1.0, ms=7)
        worst = max(worst, float(abs(bulk - rank).max()))
        split = grid[np.isfinite(bulk.values)]
        splits.append(f"{split[0]:.3g}" if len(split) else f"above {grid[-1]:g}")
    axis.set(xscale="log", xlabel=SAMPLES, ylabel="learned rank$/d$;  right bulk", ylim=(0, 1.0))
    axis.legend(title="learned rank; thin line with ticks: right bulk once split", title_fontsize=9, ncols=3)
    return worst, f"differs from κ₀ by at most {worst:.1g}; two bulks from α = {', '.join(splits)} on the grid"


def _monotone(said: PublishedFigure, *curves: Curve) -> Claim:
    steps = [float(curve.theory.ds["test_error"].diff("alpha").max()) for curve in curves]
    found = "decreasing along the whole grid" if max(steps) < 0 else f"increases by up to {max(steps):.2g}"
    return said("decreasing-error", max(steps), found)


@figure_of_paper("training/fig2")
def fig2(
    parts: Parts,
    said: PublishedFigure,
    *,
    decays: Sequence[float],
    alphas: Sequence[float],
    dims: Sequence[int],
    seeds: int,
    steps: int,
    points: int,
) -> tuple[Figure, Findings]:
    """Draw test error and training loss for weight ``decays`` and 0+: noise 0.5, target of rank d/2.

    Adam runs at ``alphas``, theory at ``points`` alphas; the decay 0+ has theory only.
    """
    trials, grid = Trials(alphas, dims, seeds, steps), np.linspace(0.05, 0.6, points)
    limit = asx.RiskMinimization(attention(), weight_decay=0.0)
    at = float(parts.thresholds("threshold", limit).interpolation)
    curves = [
        learning_curve(
            parts, f"decay_{decay:g}", replace(limit, weight_decay=decay), label=rf"$\lambda={_power(decay)}$",
            look=look, grid=np.append(grid, at) if decay == 0 else grid, trials=trials if decay else None,
        )
        for look, decay in enumerate((*decays, 0.0))
    ]  # fmt: skip
    options = {"sharex": True, "height_ratios": [3, 1]}
    picture, axes = panels(2, 2, size=(11.0, 6.6), **options)
    draw(axes[0], curves, "test_error", TEST_ERROR, "", log="")
    draw(axes[1], curves, "train_loss", TRAIN_LOSS, "", log="y")
    draw_replicon(axes[2], curves)
    draw(axes[3], [Curve(c.label, c.look, c.theory) for c in curves], "jump_weight", "share of jumps", log="y")
    axes[2].set_xscale("linear")
    axes[3].set_ylim(1e-6, 0.3)
    for axis in axes[:2]:
        mark(axis, at, "interpolation", height=0.3)
    axes[0].legend(title=f"lines: theory\npoints: {trials.words}", title_fontsize=8.5, fontsize=8.5)
    claims = [*_peak_claims(said, curves[-1], curves[-2], at), _monotone(said, *curves[:2])]
    claims.append(replicon_claim(said, curves))
    remarks = said.remarks(unproven=where_unproven(curves), unfinished=unfinished(curves))
    return picture, Findings(list(agreements(parts, curves, "test_error", "train_loss")), claims, remarks)


def _power(decay: float) -> str:
    """Return a weight decay in TeX, for a label."""
    return "0^+" if decay == 0 else f"{decay:g}" if decay >= 1e-2 else f"10^{{{round(np.log10(decay))}}}"


def _peak_claims(said: PublishedFigure, limit: Curve, least: Curve, at: float) -> list[Claim]:
    """Judge the claims on the loss without decay and on the error's peak at the threshold ``at``.

    ``limit`` is the curve of vanishing weight decay, ``least`` that of the least positive one.
    """
    ds = limit.theory.ds.dropna("alpha", subset=["test_error"])
    alpha, loss, error = (ds[name].values for name in ("alpha", "train_loss", "test_error"))
    below, above = loss[alpha < at].max(), loss[alpha > at].min()
    left, middle, right = np.interp([0.7 * at, at, 1.3 * at], alpha, error)
    x, y = least.theory.ds["alpha"].values, least.theory.ds["test_error"].values
    dip = int((np.diff(y) > 0).argmax())  # the error falls at first
    top = float(x[dip + int(y[dip:].argmax())])
    peak = f"λ → 0⁺ has {middle:.3f} at the threshold, {left:.3f} at 0.7 and {right:.3f} at 1.3 times it; at "
    peak += f"{plain(least.label)} the top is at α = {top:.3g}, {top / at:.2f} times the threshold"
    words = f"threshold {at:.4f}; at most {below:.1g} below it, at least {above:.2g} above"
    return [
        said("zero-loss", [below, 1e-9, above], words),
        said("peak-at-threshold", middle > left and abs(right - left) > 0.2 * (middle - left), peak),
    ]


@figure_of_paper("training/fig3-left")
def fig3_left(
    parts: Parts,
    said: PublishedFigure,
    *,
    alphas: Sequence[float],
    dims: Sequence[int],
    seeds: int,
    decays: Sequence[float],
    points: int,
) -> tuple[Figure, Findings]:
    """Draw test errors at the best weight decay for two parameterisations: target of rank d/20, noise 0.05.

    Adam, at ``alphas``, has the best of ``decays`` and theory's optimum. Theory has ``points`` alphas.
    """
    trials, grid = Trials(alphas, dims, seeds), grid_with(np.geomspace(0.05, 1.0, points), alphas)
    problem = asx.RiskMinimization(attention(0.05, 0.05))
    best = parts.dataset("optimum", {"grid": grid.tolist()}, lambda: _best_decays(problem, grid))
    bayes = parts.solve("bayes_theory", asx.BayesOptimal(problem.model), alpha=grid)
    picture, axes = panels(2, 1, size=(6.4, 6.4), sharex=True, height_ratios=[2, 1])
    found = []
    for (color, style, marker), (name, label) in zip(LOOKS, _PARAMETERIZATIONS, strict=False):
        axes[0].plot(grid, best[f"{name}_error"], style, color=color, label=label)
        axes[1].plot(grid, best[f"{name}_decay"], style, color=color)
        own = replace(problem, parameterization=name)
        optimum = best[f"{name}_decay"].sel(alpha=list(alphas)).values
        values, chosen, at = _best_of_grid(
            parts, name, own, trials, [*(np.full(len(alphas), d) for d in decays), optimum]
        )
        experiment_points(axes[0], largest(values), label="_", color=color, marker=marker)
        axes[1].plot(alphas, at, marker, color=color, markerfacecolor="white")
        found.append(agreement(f"test error, {plain(label)}, at Adam's best weight decay", chosen, "test_error"))
    axes[0].plot(grid, bayes.ds["test_error"], ":", color="0.45", label="Bayes-optimal: no learner is better")
    axes[0].set(xscale="log", yscale="log", ylabel=TEST_ERROR)
    axes[0].legend(title=f"lines: theory\npoints: {trials.words}", title_fontsize=9, loc="upper right")
    axes[1].set(yscale="log", xlabel=SAMPLES, ylabel=r"best weight decay $\lambda$")
    ratio = (best["full_error"] / best["factorized_error"]).values
    lower = f"{ratio.min():.2f} to {ratio.max():.1f} times lower from α = {grid[0]:g} to {grid[-1]:g}; most at α = "
    lower += f"{grid[ratio.argmax()]:.2g}, least at {grid[ratio.argmin()]:.2g}"
    claims = [said("much-lower", ratio.min(), lower)]
    ends = [f"{name}: α = {_numbers(grid[best[f'{name}_inside'].values == 0])}" for name, _ in _PARAMETERIZATIONS]
    remarks = said.remarks(ends="; ".join(ends), decays=_numbers(np.asarray(decays)))
    return picture, Findings(found, claims, remarks)


_PARAMETERIZATIONS = (("factorized", "factorised, $S=WW^T$"), ("full", "any symmetric $S$"))


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values) or "none"


def _best_decays(problem: asx.RiskMinimization, grid: np.ndarray) -> xr.Dataset:
    """Return theory's best weight decay and its test error along ``grid``; ``*_inside``: not at the search's bounds."""
    columns: dict[str, list[float]] = {}
    for name, _ in _PARAMETERIZATIONS:
        own = replace(problem, parameterization=name)
        found = [
            asx.optimum(own, "test_error", "weight_decay", bounds=(1e-6, 1e-1), alpha=float(alpha)) for alpha in grid
        ]
        columns |= {f"{name}_error": [one.value for one in found], f"{name}_decay": [one.at for one in found]}
        columns[f"{name}_inside"] = [float(one.inside) for one in found]
    return xr.Dataset({name: ("alpha", values) for name, values in columns.items()}, coords={"alpha": grid})


def _best_of_grid(
    parts: Parts, name: str, problem: asx.RiskMinimization, trials: Trials, decays: Sequence[np.ndarray]
) -> tuple[xr.DataArray, Comparison, np.ndarray]:
    """Return Adam's test errors at the best weight decay per alpha, their comparison with theory, and these decays.

    Each array in ``decays`` has one weight decay per alpha of ``trials``; the best has the least mean test error, as in
    the paper. ``name`` begins the names of the stored results.
    """
    tried: list[xr.DataArray] = []
    scores: list[xr.Dataset] = []
    last = None
    for row in decays:
        pieces = []
        for decay in np.unique(row):  # one call for all alphas that share a weight decay
            own = replace(problem, weight_decay=float(decay))
            some = replace(trials, alphas=[alpha for alpha, d in zip(trials.alphas, row, strict=True) if d == decay])
            theory = parts.solve(f"{name}_{decay:.3g}_theory", own, alpha=list(some.alphas))
            last = parts.compare(theory, some.run(parts, f"{name}_{decay:.3g}_adam", own))
            pieces.append(last)
        tried.append(xr.concat([one.experiment.ds["test_error"] for one in pieces], "alpha").sortby("alpha"))
        scores.append(
            xr.concat([one.ds for one in pieces], "alpha", coords="minimal", compat="override").sortby("alpha")
        )
    assert last is not None
    values = xr.concat(tried, "weight_decay", coords="minimal", compat="override")
    both = xr.concat(scores, "weight_decay", coords="minimal", compat="override")
    best = values.mean("seed").argmin("weight_decay")
    at = np.asarray(decays)[largest(best).values, np.arange(len(trials.alphas))]
    return values.isel(weight_decay=best), replace(last, ds=both.isel(weight_decay=best)), at


@figure_of_paper("training/fig3-right")
def fig3_right(parts: Parts, said: PublishedFigure, *, points: int) -> tuple[Figure, Findings]:
    """Draw four thresholds at ``points`` ranks of the target: no noise, vanishing weight decay, two tokens."""
    ranks = np.linspace(0.01, 1.0, points)
    found = parts.dataset("thresholds", {"points": points}, lambda: thresholds.along_ranks(ranks))
    picture, (axis,) = panels(size=(6.0, 4.2))
    lines = (
        ("full", "exact recovery, any symmetric $S$", ORANGE, "-."),
        ("interpolation", "interpolation (unique PSD interpolator)", PINK, ":"),
        ("factorized", "exact recovery, $S=WW^T$", BLUE, "-"),
        ("bayes", "exact recovery, Bayes-optimal", GREEN, "--"),
    )
    for name, label, color, style in lines:
        axis.plot(ranks, found[name], style, color=color, label=label)
    published(
        axis, [ranks[0], ranks[-1]], 2 * [float(said.claims["full-recovery"].published)], "published: any symmetric $S$"
    )
    axis.set(xlabel=r"rank of the target  $\kappa_0 = m_0/d$", ylabel=r"threshold  $\alpha = n/d^2$", ylim=(0, 0.55))
    axis.legend(loc="upper left", bbox_to_anchor=(0.0, 0.88))
    ladder = [found[name].values for name in ("bayes", "factorized", "interpolation", "full")]
    ordered = bool((np.diff(ladder, axis=0) > -1e-9).all())
    remarks = said.remarks(ordered="yes" if ordered else "NO")
    return picture, Findings(claims=thresholds.claims(said, found), remarks=remarks)


__all__ = ["fig1", "fig2", "fig3_left", "fig3_right", "fig4", "fig5", "fig6"]
