"""A figure beyond the papers: the phases of learning a power-law target, over samples and weight decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from ...core.plot import SIGNED_COLOURS
from ..making.drawing import panels
from ..making.parts import Parts
from ..making.record import Findings
from ..making.registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

    from ...core.result import Result

NOISE = 0.5
#: Exponents of the three maps of linear attention; the second is repeated with a softmax.
GAMMAS = (0.75, 1.0, 1.5)
#: The colour scale covers slopes from minus to plus this number; steeper slopes look alike.
REACH = 2.0
#: Name of a phase -> (its predicted slope, boolean array of the points well inside it).
Phases = dict[str, tuple[float, np.ndarray]]
#: A point counts for the slope of its phase if it is farther than this factor from the borders of the phase. Smaller:
#: crossovers blur the slope. Larger: few points are left.
WELL_INSIDE = 3.0


@figure(
    "atlas/scaling",
    shows="Exponents of the excess error over samples and weight decay, for targets that fall off with their rank",
    source="asymptotix",
    quick=Size(8.0, 1.0, {"dim": 10**6, "alphas": 19, "decays": 9, "softmax": 13}),
    paper=Size(90.0, 2.0, {"dim": 10**6, "alphas": 46, "decays": 31, "softmax": 28}),
)
def scaling(parts: Parts, *, dim: int, alphas: int, decays: int, softmax: int) -> tuple[Figure, Findings]:
    """Draw maps of the error's slope in n: linear attention for three exponents, softmax attention for one.

    ``alphas`` (``softmax`` in the last map) and ``decays`` are numbers of grid points.
    """
    picture, axes = panels(1, 4, size=(17.0, 4.9), sharey=True)
    remarks: list[str] = []
    image: Any = None
    for gamma, axis in zip(GAMMAS, axes, strict=False):
        problem = _problem(gamma, dim, "linear")
        result = parts.solve(f"linear_{gamma:g}", problem, alpha=_alphas(dim, alphas), weight_decay=_decays(decays))
        samples = _alphas(dim, alphas)
        edge = np.sqrt(16 * NOISE * samples)  # sqrt(qhat), in closed form
        best = parts.dataset(
            f"best_{gamma:g}", {"dim": dim, "alphas": alphas}, partial(_at_edge, problem, samples, edge)
        )
        image = _map(axis, result, dim)
        axis.set_title(rf"linear, $\gamma = {gamma:g}$")
        borders = _Borders(gamma, dim)
        borders.draw(axis)
        lines = _label(axis, result, borders.phases, dim)
        lines.append(_label_best(axis, best, borders.begin, gamma, dim))
        remarks += [f"gamma = {gamma:g}: {line}" for line in lines]
    remarks += _softmax(axes[3], parts, dim, softmax, decays)
    axes[0].set_ylabel(r"weight decay  $\lambda$")
    picture.colorbar(image, ax=axes, label=r"local slope of the excess error in $n$", shrink=0.9)
    return picture, Findings(remarks=remarks)


def _problem(gamma: float, dim: int, activation: str) -> asx.RiskMinimization:
    tokens = 1 if activation == "linear" else 2
    target = asx.RankedPowerLaw(gamma, dim)
    task = asx.AttentionIndex(tokens=tokens, activation=activation, target=target, noise=NOISE)
    return asx.RiskMinimization(task)


def _alphas(dim: int, count: int) -> np.ndarray:
    """Return ``count`` alphas, from n of order d to n far beyond d^2."""
    return np.geomspace(1 / dim, 1e3, count)


def _decays(count: int) -> np.ndarray:
    return np.geomspace(1e-3, 1e3, count)


def _at_edge(problem: asx.RiskMinimization, alpha: np.ndarray, decays: np.ndarray, rounds: int = 0) -> xr.Dataset:
    """Return excess errors along alpha at the weight decay sqrt(qhat), which cuts at the edge of the noise.

    The decays start at ``decays``, one per alpha, and are updated ``rounds`` times to the sqrt(qhat) of the solution.
    """
    errors, edge = np.empty_like(alpha), decays.copy()
    for k, a in enumerate(alpha):
        for after in range(rounds + 1):
            point = asx.solve(replace(problem, weight_decay=edge[k]), alpha=a, progress=False)
            if after < rounds and float(point.ds.get("qhat", 0.0)) > 0:
                edge[k] = float(np.sqrt(point["qhat"]))
        errors[k] = float(point.ds.get("excess_error", np.nan))  # NaN for a point that failed
    variables = {"excess_error": ("alpha", errors), "weight_decay": ("alpha", edge)}
    return xr.Dataset(variables, coords={"alpha": alpha})


def _map(axis: Axes, result: Result, dim: int) -> QuadMesh:
    """Draw the slope at every (n/d, weight decay) as a colour; points without a number stay white."""
    slope = asx.scaling_exponent(result).local["slope"].transpose("weight_decay", "alpha")
    x, y = slope["alpha"].values * dim, slope["weight_decay"].values
    image = axis.pcolormesh(x, y, slope.values, cmap=SIGNED_COLOURS, vmin=-REACH, vmax=REACH, rasterized=True)
    axis.grid(visible=False)
    axis.set(xscale="log", yscale="log", xlabel="samples  $n/d$", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    return image


class _Borders:
    """Borders between the phases of linear attention, in a = 2 alpha and the weight decay, for exponent gamma."""

    def __init__(self, gamma: float, dim: int) -> None:
        self.gamma, self.dim = gamma, dim
        self.first = asx.RankedPowerLaw(gamma, dim).amplitude * np.sqrt(dim)  # the largest eigenvalue
        self.begin = (0.5 * NOISE + 1) / self.first**2

    def edge(self, a: np.ndarray) -> np.ndarray:
        """Return the weight decay that cuts at the edge of the noise, at every ``a``."""
        return np.sqrt(8 * NOISE * a)

    def overfits(self, a: np.ndarray) -> np.ndarray:
        """Return at which ``a`` the noise that is fitted without decay (phase III) outweighs the error of phase II."""
        g = self.gamma
        amplitude = 6 - 8 / (1 + g) + 3 / (1 + 2 * g) + 1 / (2 * g - 1)
        noise_limited = amplitude * self.first ** (1 / g) * (0.5 * NOISE / a) ** (1 - 0.5 / g) / self.dim
        fitted = 16 / (105 * np.pi) * (15 * np.pi / 8) ** 1.4 * 0.5 * NOISE * a**0.4
        return fitted > noise_limited

    def phases(self, a: np.ndarray, decay: np.ndarray) -> Phases:
        """Return the predicted slope of every phase, and which points (a, decay), of equal shape, are well inside."""
        samples, cut = a / np.maximum(self.begin, decay / (2 * self.first)), decay / self.edge(a)
        learned, below = samples > WELL_INSIDE, cut < 1 / WELL_INSIDE
        return {
            "0": (0.0, samples < 1 / WELL_INSIDE),
            "I": (-(2 - 1 / self.gamma), learned & (cut > WELL_INSIDE)),
            "III": (0.4, learned & below & (2 * a < 1 / WELL_INSIDE) & self.overfits(a)),
            "V": (-1.0, learned & below & (2 * a > WELL_INSIDE)),
        }

    def draw(self, axis: Axes) -> None:
        a = np.geomspace(self.begin, 1e4, 200)
        n, corner = 0.5 * a * self.dim, 2 * self.begin * self.first
        axis.plot(n, 2 * a * self.first, "k:", lw=1.5)
        axis.plot([n[0], n[0]], [1e-4, corner], "k:", lw=1.5)
        axis.plot(n, self.edge(a), "k-", lw=1.5)
        axis.plot([0.25 * self.dim] * 2, [1e-4, float(np.sqrt(4 * NOISE))], "k--", lw=1.2)


def _label(axis: Axes, result: Result, phases: Callable[..., Phases], dim: int) -> list[str]:
    """Write measured and predicted slopes into the phases; return them as text. ``phases``: (a, decay) -> Phases."""
    slope = asx.scaling_exponent(result).local["slope"].transpose("weight_decay", "alpha")
    alpha, decay = np.meshgrid(slope["alpha"].values, slope["weight_decay"].values)
    lines = []
    for name, (predicted, inside) in phases(2 * alpha, decay).items():
        seen = inside & np.isfinite(slope.values)
        if seen.any():
            measured = float(np.median(slope.values[seen]))
            x, y = (float(np.exp(np.median(np.log(z[seen])))) for z in (alpha * dim, decay))
            _write(axis, x, y, f"{name}\n{measured:+.2f} ({predicted:+.2f})")
            lines.append(f"phase {name}: slope {measured:+.3f} measured, {predicted:+.3f} predicted")
    return lines


def _label_best(axis: Axes, best: xr.Dataset, begin: float, gamma: float, dim: int) -> str:
    """Write the measured and the predicted slope of phase II, along the line ``best``, and return them as text.

    ``best`` comes from `_at_edge`. The first direction is learned at a = ``begin``.
    """
    along = asx.scaling_exponent(_Curve(best), window=(5 * begin, float(best["alpha"][-1])))
    measured, predicted = float(along.mean), -(1 - 0.5 / gamma)
    alpha = float(np.sqrt(begin * 1e3)) / 2
    decay = float(np.exp(np.interp(np.log(alpha), np.log(best["alpha"]), np.log(best["weight_decay"]))))
    _write(axis, alpha * dim, decay, f"II {measured:+.2f} ({predicted:+.2f})")
    return f"phase II, along the solid line: slope {measured:+.3f} measured, {predicted:+.3f} predicted"


def _softmax(axis: Axes, parts: Parts, dim: int, alphas: int, decays: int) -> list[str]:
    """Draw the map of softmax attention; return its slopes as text. ``alphas``, ``decays`` are numbers of points.

    Its borders have no closed forms: they are read off the map and qhat.
    """
    gamma = GAMMAS[1]
    problem = _problem(gamma, dim, "softmax")
    result = parts.solve("softmax", problem, alpha=_alphas(dim, alphas), weight_decay=_decays(decays))
    _map(axis, result, dim)
    axis.set_title(rf"softmax, $\gamma = {gamma:g}$")
    learned = (result["estimation_error"] < 1 - 1e-9).any("weight_decay")
    samples = result["alpha"].values[learned.values]
    made = partial(_at_edge, problem, samples, 0.5 * np.sqrt(samples), rounds=2)
    best = parts.dataset("best_softmax", {"dim": dim, "alphas": alphas}, made)
    axis.plot(best["alpha"] * dim, best["weight_decay"], "k-", lw=1.5)
    begin = 2 * float(samples[0])
    lines = _label(axis, result, partial(_softmax_phases, result, best, gamma), dim)
    return [f"softmax, gamma = {gamma:g}: {line}" for line in [*lines, _label_best(axis, best, begin, gamma, dim)]]


def _softmax_phases(result: Result, best: xr.Dataset, gamma: float, a: np.ndarray, decay: np.ndarray) -> Phases:
    """Return the phases of softmax attention at points (a, decay): slopes as for linear attention.

    Which points are inside follows from the map ``result`` and from the decays ``best`` of `_at_edge`.

    Two tokens give N = 2 numbers per sample, so that interpolation is at half the a of linear attention.
    """
    learned = result["estimation_error"].transpose("weight_decay", "alpha").values < 1 - 1e-9
    well_learned = learned & np.roll(learned, 1, axis=1) & (np.arange(a.shape[1]) > 0)
    edge = np.exp(np.interp(np.log(a / 2), np.log(best["alpha"]), np.log(best["weight_decay"]), left=np.nan))
    inside = np.isfinite(edge)
    return {
        "0": (0.0, ~learned),
        "I": (-(2 - 1 / gamma), well_learned & inside & (decay > WELL_INSIDE * edge)),
        "V": (-1.0, learned & inside & (decay < edge / WELL_INSIDE) & (4 * a > WELL_INSIDE)),
    }


def _write(axis: Axes, x: float, y: float, words: str) -> None:
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5}
    axis.text(x, y, words, ha="center", va="center", fontsize=9, bbox=box, clip_on=True)


class _Curve:
    """Wrapper of a dataset, which makes it an argument of :func:`asymptotix.scaling_exponent`."""

    problem = None

    def __init__(self, ds: xr.Dataset) -> None:
        self.ds = ds
