"""Spectrum of the learned matrix.

Boncoraglio et al., arXiv:2509.24914, eq. (13), corrected: the density of singular values there lacks the factor
Sigmahat/mhat = 1/scale, in front and in the argument. This factor is one only at vanishing weight decay below
interpolation.

Equation ai-spectrum of docs/theory/attention_index.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...numerics import checks
from .convolution import Convolution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.typing import ColorType
    from numpy.typing import ArrayLike

KINDS = ("factorized", "full")
ZEROS_BELOW = 0.1
"""Singular values of W/(m d)^{1/4} below this, and eigenvalues below its square, count as zeros."""
ATOM = "atom at zero"
"""Matplotlib gid of the text that labels an atom; a second such text on the same axes is placed below the first."""


@dataclass(frozen=True)
class LearnedSpectrum:
    """Law of the eigenvalues of the learned S = W W^T / sqrt(m d), or of a learned symmetric S.

    With x drawn from mu_delta, the law of S_0 + delta GOE with the target S_0, the eigenvalues are

        s = scale (x - eps)_+   for kind "factorized",      s = scale x   for kind "full".

    The singular values rho = sqrt(s) of W/(m d)^{1/4} then have an atom mu_delta((-inf, eps]) at zero and for rho > 0
    the density 2 rho/scale mu_delta(rho^2/scale + eps).

    Parameters
    ----------
    convolution : Convolution
        mu_delta at delta = sqrt(qhat)/mhat; mhat, qhat and Sigmahat are state evolution's order parameters.
    scale : float
        mhat/Sigmahat, or mhat/(Sigmahat + 4 lambda) for "full", with lambda the weight decay.
    eps : float
        Threshold 2 sqrt(kappa) lambda/mhat, with kappa = m/d the width ratio; 0 for "full".
    kind : "factorized" or "full"
    outliers : tuple of float
        Eigenvalues of S outside its bulk, which belong to spikes of the target.
    outlier_weight : float
        Mass of one outlier in the convolution: 1/d if mu_delta is the law of a finite matrix, else 0.
    """

    convolution: Convolution
    scale: float
    eps: float = 0.0
    kind: str = "factorized"
    outliers: tuple[float, ...] = ()
    outlier_weight: float = 0.0

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, KINDS)
        object.__setattr__(self, "scale", float(checks.positive("scale", self.scale)))
        eps = float(checks.non_negative("eps", self.eps))
        object.__setattr__(self, "eps", eps if self.kind == "factorized" else 0.0)
        object.__setattr__(self, "outliers", tuple(float(value) for value in self.outliers))

    @property
    def atom(self) -> float:
        """Fraction of eigenvalues that are zero."""
        return float(self.convolution.cdf(self.eps)) if self.kind == "factorized" else 0.0

    @property
    def rank(self) -> float:
        """Rank of S divided by d."""
        return 1.0 - self.atom

    @property
    def bulks(self) -> int:
        """Number of separate intervals of non-zero eigenvalues, outliers not counted."""
        return len(self._intervals()[0])

    def eigenvalue_density(self, s: ArrayLike) -> np.ndarray:
        """Return the density of the non-zero eigenvalues of S, of total mass ``rank``."""
        s = np.asarray(s, dtype=float)
        density = self.convolution.density(s / self.scale + self.eps) / self.scale
        return np.where(s > 0, density, 0.0) if self.kind == "factorized" else density

    def eigenvalue_cdf(self, s: ArrayLike) -> np.ndarray:
        """Return the fraction of eigenvalues of S up to ``s``, zeros included."""
        s = np.asarray(s, dtype=float)
        cdf = self.convolution.cdf(s / self.scale + self.eps)
        return np.where(s >= 0, cdf, 0.0) if self.kind == "factorized" else cdf

    def singular_value_density(self, rho: ArrayLike) -> np.ndarray:
        """Return the density of the non-zero singular values of W/(m d)^{1/4}, of total mass ``rank``."""
        self._refuse_full("singular_value_density")
        rho = np.asarray(rho, dtype=float)
        return np.where(rho > 0, 2 * rho * self.eigenvalue_density(rho**2), 0.0)

    def singular_value_cdf(self, rho: ArrayLike) -> np.ndarray:
        """Return the fraction of singular values of W/(m d)^{1/4} up to ``rho``, among d values that include zeros."""
        self._refuse_full("singular_value_cdf")
        rho = np.asarray(rho, dtype=float)
        return np.where(rho >= 0, self.eigenvalue_cdf(rho**2), 0.0)

    def kolmogorov_distance(self, values: ArrayLike, zeros_below: float = ZEROS_BELOW) -> float:
        """Return the largest difference between the distribution functions of theory and experiment, without outliers.

        Parameters
        ----------
        values : array
            All d singular values of W/(m d)^{1/4}, zeros included; for kind "full" the eigenvalues of S.
        zeros_below : float
            Singular values up to this bound count as zero, because training approaches zeros slowly. The distance is
            taken from the bound on. Not used for "full".
        """
        values = np.sort(checks.finite_grid("values", values))
        if self.kind == "full":
            start, cdf = -np.inf, self._bulk_cdf
        else:
            start, cdf = float(checks.non_negative("zeros_below", zeros_below)), lambda rho: self._bulk_cdf(rho**2)
        values = self._without_outliers(values)
        below, count = int(np.searchsorted(values, start, side="right")), len(values)
        theory = cdf(values[below:])
        steps = np.arange(below, count + 1) / count
        distances = [np.abs(theory - steps[:-1]), np.abs(theory - steps[1:])]
        if np.isfinite(start):
            distances.append(np.abs(cdf(np.array([start])) - below / count))
        return float(np.concatenate(distances).max())

    def plot(
        self,
        histogram: ArrayLike | None = None,
        ax: Axes | None = None,
        singular_values: bool = True,
        *,
        color: Any = None,
        label: str | None = None,
        measured: ArrayLike | None = None,
        **line: Any,
    ) -> Axes:
        """Draw the density, the zeros as an arrow with their mass, outliers as stems, an experiment as a histogram.

        The atom at zero is a mass and no density: the length of its arrow means nothing on the axis of densities.

        Parameters
        ----------
        histogram : array, optional
            Singular values or eigenvalues of an experiment, whichever are drawn. Zeros (singular values below 0.1)
            are left out of the bars, which are normalised by all values, and their fraction is in the legend.
        ax : matplotlib axes, optional
            A new figure if None. On axes that already have lines, the next colours are used.
        singular_values : bool
            Draw the singular values of W/(m d)^{1/4}, or the eigenvalues of S; always the latter for kind "full".
        color : colour, optional
            Colour of the density and of the arrow.
        label : str, optional
            Name of the density in the legend; "theory" by default.
        measured : array (runs, outliers), optional
            Singular values or eigenvalues of an experiment's outliers; means are drawn with standard errors.
        **line
            Further properties of a matplotlib line.
        """
        from ...core.plot import axes_or_new, next_colour, style, with_legend

        of_w = singular_values and self.kind == "factorized"
        with style():
            ax = axes_or_new(ax)
            color = next_colour(ax) if color is None else color
            drawn = [ax.plot(x, y, **({"color": color} | line))[0] for x, y in self._curves(of_w)]
            for curve in drawn[:1]:
                curve.set_label(label or "theory")
            if self.atom > 0:
                self._draw_atom(ax, color)
            height = 0.5 * _height(drawn)
            self._draw_outliers(ax, color, of_w, height)
            if histogram is not None:
                self._draw_histogram(ax, checks.finite_grid("histogram", histogram), of_w, next_colour(ax))
            if measured is not None:
                _draw_measured(ax, np.atleast_2d(np.asarray(measured, dtype=float)), 1.1 * height)
            ax.set_xlabel(r"singular value $\rho$ of $W/(md)^{1/4}$" if of_w else r"eigenvalue $s$ of $S$")
            ax.set_ylabel("density")
            ax.set_ylim(0, max(1.3 * _height(drawn), ax.get_ylim()[1] if len(ax.lines) > len(drawn) else 0.0))
            return with_legend(ax)

    def _refuse_full(self, name: str) -> None:
        if self.kind == "full":
            raise ValueError(f"kind must be 'factorized' for {name}: a full S is not W W^T; use its eigenvalues")

    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals of non-zero eigenvalues of S: the bulks, (bulks, 2), and those of outliers alone, (k, 2).

        Only in the law of a finite matrix do outliers have intervals.
        """
        edges = self.convolution.edges
        if self.kind == "factorized":
            edges = np.maximum(edges[edges[:, 1] > self.eps], self.eps)
        intervals, outliers = self.scale * (edges - self.eps), np.array(self.outliers)
        if not self.outlier_weight or not len(outliers):
            return intervals, intervals[:0]
        inside = (intervals[:, :1] <= outliers) & (outliers <= intervals[:, 1:])
        mass = np.diff(self.eigenvalue_cdf(intervals), axis=1)[:, 0]
        single = inside.any(axis=1) & (mass < (inside.sum(axis=1) + 0.5) * self.outlier_weight)
        return intervals[~single], intervals[single]

    def _bulk_cdf(self, s: np.ndarray) -> np.ndarray:
        """Return the fraction of eigenvalues up to ``s`` among those that are not outliers."""
        single = self._intervals()[1]
        starts = self.eigenvalue_cdf(single[:, 0])
        passed = self.eigenvalue_cdf(np.clip(np.asarray(s)[..., None], single[:, 0], single[:, 1])) - starts
        masses = self.eigenvalue_cdf(single[:, 1]) - starts
        return (self.eigenvalue_cdf(s) - passed.sum(axis=-1)) / (1 - masses.sum())

    def _without_outliers(self, values: np.ndarray) -> np.ndarray:
        """Return the ascending singular values (eigenvalues for "full") without the one closest to each outlier."""
        for outlier in sorted(self.outliers, reverse=True):
            place = np.sqrt(outlier) if self.kind == "factorized" else outlier
            values = np.delete(values, np.argmin(np.abs(values - place)))
        return values

    def _curves(self, of_w: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        density = self.singular_value_density if of_w else self.eigenvalue_density
        curves = []
        intervals = self._intervals()[0]
        for low, high in np.sqrt(intervals) if of_w else intervals:
            # The points are dense at both ends, where the density is a square root.
            x = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.linspace(0, np.pi, 301))
            x[0], x[-1] = np.nextafter(low, high), high
            curves.append((x, density(x)))
        return curves

    def _draw_atom(self, ax: Axes, color: ColorType) -> None:
        """Draw an arrow from the axis up, the symbol of a point mass, and label it with the mass."""
        there = [text for text in ax.texts if text.get_gid() == ATOM]
        # The label is above the density, and that of a second law on the same axes is below the first label.
        top = 0.93 - 0.08 * len(there)
        arrow = {"arrowstyle": "<|-", "color": color, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        mass = ax.annotate(
            f"mass {self.atom:.3g} at zero",
            (0, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, top),
            textcoords=("data", "axes fraction"),
            color=color,
            fontsize=9,
            va="center",
            arrowprops=arrow,
        )
        mass.set_gid(ATOM)

    def _draw_outliers(self, ax: Axes, color: ColorType, of_w: bool, height: float) -> None:
        """Draw a stem of this ``height``, which means nothing, at each outlier: at its singular value if ``of_w``."""
        places = np.sqrt(self.outliers) if of_w else np.array(self.outliers)
        if len(places):
            ax.vlines(places, 0, height, color=color, linewidth=1.2)
            ax.plot(places, np.full(len(places), height), "o", color=color, markersize=5, label="outliers")

    def _draw_histogram(self, ax: Axes, values: np.ndarray, of_w: bool, color: str) -> None:
        kept, label = values, "experiment"
        if self.kind == "factorized":
            kept = values[values >= (ZEROS_BELOW if of_w else ZEROS_BELOW**2)]
            label = f"experiment, at zero: {1 - len(kept) / len(values):.3f}"
        counts, ends = np.histogram(kept, bins=max(10, round(np.sqrt(2 * len(values)))))
        ax.stairs(counts / (len(values) * np.diff(ends)), ends, fill=True, alpha=0.35, color=color, label=label)


def _draw_measured(ax: Axes, measured: np.ndarray, height: float) -> None:
    runs, places = len(measured), measured.mean(axis=0)
    error = measured.std(axis=0, ddof=1) / np.sqrt(runs) if runs > 1 else None
    heights = np.full(len(places), height)
    ax.errorbar(places, heights, xerr=error, fmt="s", color="black", markersize=4, capsize=3, label="measured outliers")


def _height(curves: Sequence[Line2D]) -> float:
    """Return the largest 98 % quantile of the curves' ordinates: peaks at edges, which may be infinite, are ignored."""
    return max((float(np.quantile(np.asarray(curve.get_ydata()), 0.98)) for curve in curves), default=1.0)
