"""Learning curves of trained attention, theory and Adam: computed, drawn and judged in one way for all figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

import asymptotix as asx

from ..core.words import format_number
from .making.claims import PublishedFigure
from .making.drawing import BLACK, BLUE, GREEN, ORANGE, PINK, experiment_points, grid_with, theory_line
from .making.parts import Parts
from .making.record import Agreement, Claim, agreement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..core.result import Result

#: (colour, line, marker) of the first curve, the second, ...
LOOKS = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PINK, ":", "D"), (BLACK, "-", "v"))
SAMPLES = r"samples  $\alpha = n/d^2$"
TEST_ERROR = r"test error  $E\,\|y-A\|_F^2$"
TRAIN_LOSS = r"training loss  $L/d^2$"
WORDS = {"test_error": "test error", "train_loss": "training loss"}
#: Where the proximal map jumps on a larger share of the data, a remark says that replica symmetry is unproven.
JUMPS = 1e-3


def attention(rank: float = 0.5, noise: float = 0.5, **options: float | str) -> asx.AttentionIndex:
    """Return the data model with a target of rank ``rank`` x d; ``options`` are those of `AttentionIndex`."""
    return asx.AttentionIndex(target=asx.MarchenkoPastur(rank), noise=noise, **options)  # pyright: ignore


@dataclass(frozen=True)
class Trials:
    """Adam's runs of a figure: alphas, dimensions d, number of seeds at each of them, and number of steps."""

    alphas: Sequence[float]
    dims: Sequence[int]
    seeds: int
    steps: int = 700

    @property
    def words(self) -> str:
        return f"Adam at $d={self.dims[-1]}$, {self.seeds} runs, ±1 s.e.m."

    def run(self, parts: Parts, name: str, problem: asx.RiskMinimization) -> Result:
        adam, grid = asx.Adam(steps=self.steps), list(self.alphas)
        return parts.simulate(name, problem, adam, alpha=grid, dim=list(self.dims), seeds=self.seeds)


@dataclass(frozen=True)
class Curve:
    """A theory curve along alpha, and runs of Adam at some of its points.

    ``look`` is (colour, line, marker). ``stretch`` multiplies alpha in the drawing.
    """

    label: str
    look: tuple[str, str, str]
    theory: Result
    runs: Result | None = None
    stretch: float = 1.0

    def measured(self, name: str) -> xr.DataArray:
        """Return the observable ``name`` of Adam's runs in the largest dimension, (alpha, seed)."""
        assert self.runs is not None
        return largest(self.runs.ds[name])

    def largest_jumps(self) -> tuple[float, np.ndarray]:
        """Return the largest share of data on which the proximal map jumps, and the drawn alphas with over JUMPS."""
        weight = self.theory.ds["jump_weight"]
        return float(weight.max()), self.stretch * weight["alpha"].values[weight.values > JUMPS]


def largest(values: xr.DataArray) -> xr.DataArray:
    """Return the values at the last, largest ``dim``."""
    return values.isel(dim=-1) if "dim" in values.dims else values


def learning_curve(
    parts: Parts,
    name: str,
    problem: asx.RiskMinimization,
    *,
    label: str,
    look: int,
    grid: Sequence[float] | np.ndarray,
    trials: Trials | None = None,
    stretch: float = 1.0,
) -> Curve:
    """Solve a problem at the alphas of ``grid`` and ``trials``, and run Adam at the latter.

    Alphas are first divided by ``stretch``. ``look`` is an index of LOOKS; names of stored results begin with ``name``.
    """
    own = np.asarray(grid) / stretch
    if trials is None:
        return Curve(label, LOOKS[look], parts.solve(f"{name}_theory", problem, alpha=grid_with(own)), None, stretch)
    inner = Trials(np.round(np.asarray(trials.alphas) / stretch, 12).tolist(), trials.dims, trials.seeds, trials.steps)
    theory = parts.solve(f"{name}_theory", problem, alpha=grid_with(own, inner.alphas))
    return Curve(label, LOOKS[look], theory, inner.run(parts, f"{name}_adam", problem), stretch)


def draw(axis: Axes, curves: Sequence[Curve], name: str, ylabel: str, xlabel: str = SAMPLES, *, log: str = "x") -> None:
    """Draw the observable ``name`` of every curve: theory as lines, Adam as points; labels are cut at the first comma.

    ``log`` names the logarithmic axes: "x", "y", "xy" or "".
    """
    for curve in curves:
        color, style, marker = curve.look
        theory_line(
            axis, curve.theory, name, label=curve.label.split(",")[0], color=color, style=style, stretch=curve.stretch
        )
        if curve.runs is not None and name in curve.runs.ds:
            values = curve.measured(name)
            experiment_points(axis, values, label="_", color=color, marker=marker, stretch=curve.stretch)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if "x" in log:
        axis.set_xscale("log")
    if "y" in log:
        axis.set_yscale("log")


def draw_replicon(axis: Axes, curves: Sequence[Curve], xlabel: str = SAMPLES) -> None:
    """Draw the replicon, which must stay below the line at 1; crosses mark points where theory is unproven."""
    draw(axis, [Curve(c.label, c.look, c.theory, None, c.stretch) for c in curves], "replicon", "replicon", xlabel)
    axis.axhline(1.0, color="0.35", lw=1.0)
    axis.set_ylim(0, 1.25)


def agreements(parts: Parts, curves: Sequence[Curve], *names: str) -> Iterator[Agreement]:
    """Yield the agreement of Adam with theory along every curve that has runs, for the observables ``names``."""
    for curve in curves:
        if curve.runs is not None:
            comparison = parts.compare(curve.theory, curve.runs)
            yield from (agreement(f"{WORDS[name]}, {plain(curve.label)}", comparison, name) for name in names)


def where_unproven(curves: Sequence[Curve], of: str = "α") -> str:
    """Return a remark on the replicon and on where the proximal map jumps; ``of`` is the name of the abscissa."""
    first = f"The replicon is at most {worst_replicon(curves):.2f} where theory is accurate and proven"
    places = []
    for curve in curves:
        weight, at = curve.largest_jumps()
        if len(at):
            span = f"from {of} = {at.min():.3g} to {at.max():.3g}" if len(at) > 1 else f"at {of} = {at[0]:.3g}"
            places.append(f"{plain(curve.label)}: {span}, on up to {100 * weight:.1f} % of the data")
    if not places:
        return f"{first}; nowhere does the proximal map jump on more than a thousandth of the data."
    unproven = "Where the proximal map jumps on more than a thousandth of the data, replica symmetry is unproven"
    crossed = "Such points are crossed out, and those whose numerical error exceeds its tolerance"
    return f"{first}. {unproven} ({'; '.join(places)}). {crossed}."


def worst_replicon(curves: Sequence[Curve]) -> float:
    """Return the largest replicon over the converged points."""
    return max(float(c.theory.ds["replicon"].where(c.theory.ds["converged"]).max()) for c in curves)


def replicon_claim(said: PublishedFigure, curves: Sequence[Curve]) -> Claim:
    """Judge whether the replicon, less two numerical errors, stays below one.

    Where the proximal map jumps the error is large and the formula omits the jumps: a replicon above one there does
    not decide the claim.
    """
    found = f"at most {worst_replicon(curves):.2f} where theory is accurate and proven, nowhere above one by two errors"
    beyond, decided = [], False
    for curve in curves:
        replicon, error = (curve.theory.ds[name] for name in ("replicon", "replicon_err"))
        over = replicon.where(replicon - 2 * error > 1).dropna("alpha")
        if over.size:
            at, top = float(over.idxmax()), float(over.max())
            decided |= bool(curve.theory.ds["converged"].sel(alpha=over["alpha"]).any())
            known = format_number(top, float(error.sel(alpha=at)))
            beyond.append(f"{known} at α = {at:.3g}, {plain(curve.label)}, above one beyond two errors")
    words = "; ".join(beyond) + ("" if decided else ", at points where the proximal map jumps")
    holds = False if decided else None if beyond else True
    return said("replicon-condition", holds, words if beyond else found)


def unfinished(curves: Sequence[Curve]) -> str:
    """Return a remark on how many runs of Adam did not converge, by curve."""
    counts = [
        f"{int((~c.runs.ds['converged']).sum())} of {c.runs.ds['converged'].size} ({plain(c.label)})"
        for c in curves
        if c.runs is not None and not c.runs.ds["converged"].all()
    ]
    return f"Runs of Adam that had not converged after the last step: {'; '.join(counts) or 'none'}."


def plain(label: str) -> str:
    """Return a label without TeX marks, for the record."""
    for tex, text in (
        ("$", ""), (r"\lambda", "λ"), (r"\Delta", "Δ"), (r"\kappa", "κ"), (r"\beta", "β"), ("_0", "₀"),
        ("10^{", "1e"), ("0^+", "0⁺"), ("}", ""), ("{", ""),
    ):  # fmt: skip
        label = label.replace(tex, text)
    return label
