"""Figs. 4 to 6 of arXiv:2509.24914v1: kinds of output, temperatures, numbers of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

import asymptotix as asx

from .making.claims import PublishedFigure
from .making.drawing import experiment_points, mark, panels
from .making.parts import Parts
from .making.record import Findings
from .making.registry import figure_of_paper
from .training_curves import (
    LOOKS,
    TEST_ERROR,
    TRAIN_LOSS,
    WORDS,
    Curve,
    Trials,
    agreements,
    attention,
    draw,
    draw_replicon,
    learning_curve,
    replicon_claim,
    unfinished,
    where_unproven,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOISES = (0.0, 0.5)


@figure_of_paper("training/fig4")
def fig4(
    parts: Parts, said: PublishedFigure, *, alphas: Sequence[float], dims: Sequence[int], seeds: int, points: int
) -> tuple[Figure, Findings]:
    """Draw errors and losses for the outputs attention matrix and sequence: weight decay 0.01, target of rank d/2.

    Adam runs at ``alphas``; theory, at ``points`` alphas, is the same for both outputs.
    """
    trials, grid = Trials(alphas, dims, seeds), np.geomspace(0.05, max(alphas), points)
    picture, axes = panels(1, 2, size=(11.0, 4.4))
    found, claims = [], []
    for (color, style, _), noise in zip(LOOKS, NOISES, strict=False):
        lab, seq = (_outputs(parts, noise, output, grid, trials) for output in ("label", "sequence"))
        found += list(agreements(parts, [lab, seq], "test_error", "train_loss"))
        for axis, name, ylabel in zip(axes, ("test_error", "train_loss"), (TEST_ERROR, TRAIN_LOSS), strict=True):
            drawn = replace(lab, label=rf"theory for both outputs $\Delta={noise:g}$", look=(color, style, "o"))
            draw(axis, [drawn], name, ylabel, log="xy")
            experiment_points(axis, seq.measured(name), label="_", color=color, marker="x")
            words = {"observable": WORDS[name], "noise": noise}
            claims.append(said("same-in-limit", *_falling_distance(name, lab, seq), **words))
            claims.append(said("within-scatter", *_distance_in_scatter(name, lab, seq), **words))
    axes[0].legend(title=f"circles: attention matrix, crosses: sequence\n{trials.words}", title_fontsize=9)
    return picture, Findings(found, claims, said.remarks())


def _outputs(parts: Parts, noise: float, output: str, grid: np.ndarray, trials: Trials) -> Curve:
    problem = asx.RiskMinimization(attention(noise=noise, output=output), weight_decay=0.01)
    label = rf"$\Delta={noise:g}$, {'attention matrix' if output == 'label' else output}"
    return learning_curve(parts, f"noise_{noise:g}_{output}", problem, label=label, look=0, grid=grid, trials=trials)


def _falling_distance(name: str, lab: Curve, seq: Curve) -> tuple[bool, str]:
    """Return whether experiments with both outputs, on equal data, differ less in larger systems, and a text."""
    assert lab.runs is not None
    assert seq.runs is not None
    apart = abs((seq.runs.ds[name] / lab.runs.ds[name] - 1).mean("seed")).mean("alpha")
    sizes, shares = np.atleast_1d(apart["dim"].values), np.atleast_1d(apart.values)
    found = ", ".join(f"{100 * share:.1f} % at d = {size}" for size, share in zip(sizes, shares, strict=True))
    falls = bool(shares[-1] < 0.75 * shares[0]) if len(sizes) > 1 else bool(shares[-1] < 0.05)
    return falls, f"differ by {found}"


def _distance_in_scatter(name: str, lab: Curve, seq: Curve) -> tuple[bool | None, str]:
    """Return whether means of both outputs differ by less than their scatter (else None), and a text.

    The scatter is a standard deviation at the largest size, the paper's error bar. ``name`` is the observable.
    """
    first, second = (curve.measured(name) for curve in (lab, seq))
    scatter = np.hypot(first.std("seed", ddof=1), second.std("seed", ddof=1))
    ratio = float((abs(first.mean("seed") - second.mean("seed")) / scatter).max())
    return ratio < 1 or None, f"differ by at most {ratio:.2f} standard deviations at d = {int(first['dim'])}"


@figure_of_paper("training/fig5")
def fig5(
    parts: Parts, said: PublishedFigure, *, alphas: Sequence[float], dims: Sequence[int], seeds: int, points: int
) -> tuple[Figure, Findings]:
    """Draw test errors for three equal temperatures of target and learner: weight decay 0.01, target of rank d/2.

    Adam runs at ``alphas``, theory at ``points`` alphas.
    """
    trials, grid = Trials(alphas, dims, seeds), np.append(np.geomspace(0.05, 4.0, points), [0.8, 0.9])
    picture, axes = panels(2, 2, size=(11.0, 6.4), sharex=True, height_ratios=[3, 1])
    found, claims, everything = [], [], []
    for noise, axis, below in zip(NOISES, axes[:2], axes[2:], strict=True):
        curves = [
            learning_curve(
                parts, f"noise_{noise:g}_beta_{beta:g}", asx.RiskMinimization(attention(noise=noise, beta=beta)),
                label=rf"$\beta=\beta_0={beta:g}$, $\Delta={noise:g}$", look=look, grid=grid, trials=trials,
            )
            for look, beta in enumerate((0.5, 1.0, 2.0))
        ]  # fmt: skip
        draw(axis, curves, "test_error", TEST_ERROR, "", log="xy")
        draw_replicon(below, curves)
        axis.set_title(rf"noise $\Delta={noise:g}$", fontsize=11)
        found += list(agreements(parts, curves, "test_error"))
        claims.append(said("smoothing-helps", *_smoothing(curves), noise=noise))
        everything += curves
    axes[0].legend(title=f"lines: theory\npoints: {trials.words}", title_fontsize=9, loc="lower left")
    claims.append(replicon_claim(said, everything))
    remarks = said.remarks(unproven=where_unproven(everything), unfinished=unfinished(everything))
    return picture, Findings(found, claims, remarks)


def _smoothing(curves: Sequence[Curve]) -> tuple[bool, str]:
    """Return whether by theory a smaller beta (0.5, 1, 2) has the lower test error at every alpha, and a text."""
    errors = [curve.theory.ds["test_error"] for curve in curves]
    crossed = [
        f"β = {low:g} is worse than {high:g} from α = {float(worse['alpha'].min()):.3g} on"
        for (low, one), (high, other) in combinations(zip((0.5, 1.0, 2.0), errors, strict=True), 2)
        if (worse := one.where(one > other, drop=True)).size
    ]
    return not crossed, "; ".join(crossed) or "lower on the whole grid"


@figure_of_paper("training/fig6")
def fig6(
    parts: Parts,
    said: PublishedFigure,
    *,
    tokens: Sequence[int],
    alphas: Sequence[float],
    dims: Sequence[int],
    seeds: int,
    points: int,
) -> tuple[Figure, Findings]:
    """Draw test errors for numbers of ``tokens`` T against rescaled samples, alpha (T^2 + T - 2)/2.

    Weight decay is 0.001, the target of rank d/2. Adam runs at the rescaled samples ``alphas``, theory at
    ``points`` values.
    """
    trials, grid = Trials(alphas, dims, seeds), np.geomspace(0.125, 4.0, points)
    picture, axes = panels(3, 2, size=(11.0, 9.0), sharex=True, height_ratios=[3, 2.4, 1])
    found, claims, everything = [], [], []
    for column, noise in enumerate(NOISES):
        curves = [
            learning_curve(
                parts, f"noise_{noise:g}_tokens_{T}",
                asx.RiskMinimization(attention(noise=noise, tokens=T), weight_decay=1e-3),
                label=rf"$T={T}$, $\Delta={noise:g}$", look=look, grid=grid, trials=trials, stretch=(T * T + T - 2) / 2,
            )
            for look, T in enumerate(tokens)
        ]  # fmt: skip
        nulls = [_error_of_zero(parts, f"noise_{noise:g}_tokens_{T}_null", T, noise) for T in tokens]
        draw(axes[column], curves, "test_error", TEST_ERROR, "")
        draw_replicon(axes[4 + column], curves, _RESCALED)
        axes[column].set_title(rf"noise $\Delta={noise:g}$", fontsize=11)
        _draw_shares(axes[2 + column], curves, nulls)
        if noise > 0:
            at = asx.thresholds(asx.RiskMinimization(attention(noise=noise)), progress=False).interpolation
            mark(axes[column], 2 * float(at), "interpolation", height=0.45)
        found += list(agreements(parts, curves, "test_error"))
        claims.append(said("curves-align", *_aligned(curves, nulls), noise=noise))
        everything += curves
    for axis in axes[4:]:  # after the scales, which would reset the ticks
        axis.set_xticks([0.125, 0.25, 0.5, 1, 2, 4], ["1/8", "1/4", "1/2", "1", "2", "4"])
        axis.minorticks_off()
    axes[0].legend(title=f"lines: theory\npoints: {trials.words}", title_fontsize=9)
    remarks = said.remarks(unproven=where_unproven(everything, "ᾱ"), unfinished=unfinished(everything))
    return picture, Findings(found, [said("rescaled-samples", *_rescaled()), *claims], remarks)


_RESCALED = r"rescaled samples  $\bar\alpha = \alpha\,(T^2+T-2)/2$"


def _error_of_zero(parts: Parts, name: str, tokens: int, noise: float) -> float:
    """Return the test error of the learned matrix S = 0, by theory at a huge weight decay, stored as ``name``."""
    problem = asx.RiskMinimization(attention(noise=noise, tokens=tokens), weight_decay=1e3)
    return float(parts.solve(name, problem, alpha=1e-3).ds["test_error"])


def _draw_shares(axis: Axes, curves: Sequence[Curve], nulls: Sequence[float]) -> None:
    """Draw each curve's test errors divided by ``nulls``, the test errors of the learned matrix S = 0."""
    for curve, null in zip(curves, nulls, strict=True):
        color, style, marker = curve.look
        errors = curve.theory.ds["test_error"]
        axis.plot(curve.stretch * errors["alpha"], errors / null, style, color=color)
        values = curve.measured("test_error") / null
        experiment_points(axis, values, label="_", color=color, marker=marker, stretch=curve.stretch)
    axis.set(xscale="log", ylabel="test error / that of $S=0$", ylim=(0, None))


def _aligned(curves: Sequence[Curve], nulls: Sequence[float]) -> tuple[bool | None, str]:
    """Return whether theory curves of different T agree at equal rescaled samples (None: open), and a text.

    Errors are also compared after division by ``nulls``, the errors of the learned matrix S = 0.
    """
    at = np.geomspace(0.2, 2.0, 25)
    errors = np.array(
        [np.interp(at, c.stretch * c.theory.ds["alpha"].values, c.theory.ds["test_error"].values) for c in curves]
    )
    shares = errors / np.asarray(nulls)[:, None]
    raw, share = errors.max(0) / errors.min(0), (shares.max(0) - shares.min(0)).max()
    found = (
        f"errors differ by a factor of {raw.min():.1f} to {raw.max():.1f} between ᾱ = 0.2 and 2; divided by the error "
        f"of S = 0 they differ by at most {share:.2f}"
    )
    # "Align" may refer to errors relative to S = 0: if these align, the claim is not decided by the errors themselves.
    return True if np.median(raw) < 1.3 else None if share < 0.1 else False, found


def _rescaled() -> tuple[bool, str]:
    """Return whether both printed expressions for the rescaled samples are equal, and a text with their values."""
    T = 3
    first, second = T * (T + 1) / 2 - 1, 2 / (T * T + T - 2)
    return bool(np.isclose(first, second)), f"n/d² times {first:g} and times {second:g} at T = 3"
