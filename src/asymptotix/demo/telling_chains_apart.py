"""Finite width beats infinite width: a hidden-Markov task learned through four attention paths.

Theory and exact sampling on several draws of the task: accuracy against width, the order parameter over pairs of paths,
and how the kernel aligns with the task: Tiberi et al., arXiv:2405.15926, figure 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from .drawing import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..attention_paths.sampling.nuts import NUTS
    from ..tasks.hidden_markov import HiddenMarkovTask

PICTURE = "hidden_markov.png"
PATHS = ("good", "adversarial", "denoising", "adversarial'")
#: Sub-networks whose Gaussian-process limit is drawn: label -> heads (layer, head) that are left out.
SUBNETWORKS = {"all paths": (), "good path": ((0, 1), (1, 1)), "good and denoising": ((1, 1),)}
#: Width at which the order parameter and the alignment are shown.
NARROW = 10
COMPONENTS = 30


def main(out: Path, quick: bool = False) -> None:
    """Solve and sample a few draws of the task, print the table, write picture and numbers to ``out``."""
    import asymptotix as asx

    widths, sampled = [10, 20, 50, 100, 200, 500, 1000], [NARROW] if quick else [NARROW, 100]
    report(measure(range(2 if quick else 3), widths, sampled, asx.NUTS(warmup=150, draws=150), 400), out)


def measure(
    tasks: Sequence[int], widths: Sequence[float], sampled: Sequence[float], sampler: NUTS, test_examples: int = 1000
) -> xr.Dataset:
    """Accuracy, order parameter and alignment of every task.

    Parameters
    ----------
    tasks : sequence of int
        Seeds of the task.
    widths : list of float
        Where theory is solved, besides the Gaussian-process limit.
    sampled : list of float
        Widths at which the posterior is sampled.
    sampler : NUTS
    test_examples : int
    """
    import asymptotix as asx

    parts = []
    for seed in tasks:
        data = asx.tasks.hidden_markov(examples=100, test_examples=test_examples, seed=seed)
        problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)
        fresh = data.test_inputs, data.test_labels
        theory = asx.solve(problem, width=[*widths, np.inf])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asx.ConvergenceWarning)  # of single short chains; their scatter is shown
            runs = asx.simulate(problem, sampler, width=sampled, seeds=[seed]).isel(seed=0)
        found = {
            "accuracy": theory.evaluate(*fresh).accuracy,
            "sampled_accuracy": _by_sampled_width(runs.evaluate(*fresh).accuracy),
            "limit_accuracy": ("subnetwork", [_limit_accuracy(data, out) for out in SUBNETWORKS.values()]),
            "order_parameter": theory.order_parameter,
            "sampled_order_parameter": _by_sampled_width(runs.order_parameter),
            "alignment": theory.alignment(COMPONENTS),
        }
        parts.append(xr.Dataset(found, coords={"subnetwork": list(SUBNETWORKS)}))
    joined = xr.concat(parts, dim="task")
    assert isinstance(joined, xr.Dataset)
    return joined


def _by_sampled_width(values: xr.DataArray) -> xr.DataArray:
    """Widths that are sampled are others than those that are solved."""
    return values.drop_vars("seed", errors="ignore").rename(width="sampled")


def _limit_accuracy(data: HiddenMarkovTask, left_out: tuple[tuple[int, int], ...]) -> float:
    """Accuracy of the Gaussian process of a network without the heads named."""
    import asymptotix as asx

    network = asx.prune(data.network, left_out) if left_out else data.network
    problem = asx.PathPosterior(network, data.inputs, data.labels, temperature=0.01)
    limit = asx.solve(problem, width=np.inf, progress=False)
    return float(limit.evaluate(data.test_inputs, data.test_labels).accuracy)


def report(numbers: xr.Dataset, out: Path) -> None:
    """Print the table; write picture and numbers."""
    out.mkdir(parents=True, exist_ok=True)
    print("Two layers of two heads learn to tell hidden Markov chains apart (100 examples): accuracy on fresh chains\n")
    print(table(numbers))
    U = numbers.order_parameter.sel(width=NARROW).mean("task").values
    print(f"\nAt width {NARROW} the order parameter weighs the paths {', '.join(PATHS)} by")
    print(f"{', '.join(f'{weight:.2f}' for weight in np.diag(U))}; good and denoising anticorrelate ({U[0, 2]:.2f}).")
    draw(numbers, out / PICTURE)
    numbers.to_netcdf(out / "hidden_markov.nc", engine="h5netcdf")
    print(f"\nPicture: {out / PICTURE}. Numbers: hidden_markov.nc beside it, for xarray.")


def table(numbers: xr.Dataset) -> str:
    """Accuracy per width, theory and sampling, mean and standard error over tasks in per cent."""
    lines = [f"{'width':>10} {'theory':>14} {'exact sampling':>16}"]
    for width in numbers.width.values:
        cells = [_percent(numbers.accuracy.sel(width=width))]
        known = width in numbers.sampled.values
        cells.append(_percent(numbers.sampled_accuracy.sel(sampled=width)) if known else "")
        lines.append(f"{width:>10g} {cells[0]:>14} {cells[1]:>16}")
    for name in list(SUBNETWORKS)[1:]:
        lines.append(f"{'inf':>10} {_percent(numbers.limit_accuracy.sel(subnetwork=name)):>14}   {name} alone")
    return "\n".join(lines)


def _percent(values: xr.DataArray) -> str:
    return f"{100 * float(values.mean()):.1f} ± {100 * float(_error(values)):.1f}"


def _error(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over tasks."""
    return values.std("task", ddof=1) / np.sqrt(values.sizes["task"])


def draw(numbers: xr.Dataset, path: Path) -> None:
    """Accuracy against width, the order parameter by theory and by sampling, alignment with the task."""
    title = (
        "Hidden-Markov task, two attention layers of two heads (four paths), 100 examples, temperature 0.01; "
        f"mean ± 1 s.e.m. over {numbers.sizes['task']} draws of the task"
    )
    with panels(path, title, (19, 4.7), [1.35, 1, 1, 1.15]) as axes:
        _accuracy(axes[0], numbers)
        _order_parameter(axes[1], numbers.order_parameter.sel(width=NARROW), f"theory, width $N={NARROW}$")
        sampled = numbers.sampled_order_parameter.sel(sampled=NARROW)
        _order_parameter(axes[2], sampled, f"exact sampling, width $N={NARROW}$")
        _alignment(axes[3], numbers)


def _accuracy(axis: Axes, numbers: xr.Dataset) -> None:
    finite = numbers.accuracy.sel(width=numbers.width[np.isfinite(numbers.width)])
    mean, error = 100 * finite.mean("task"), 100 * _error(finite)
    axis.plot(finite.width, mean, "-", color="#d55e00", label="theory, all four paths")
    axis.fill_between(finite.width, mean - error, mean + error, color="#d55e00", alpha=0.18, lw=0)
    points = numbers.sampled_accuracy
    axis.errorbar(points.sampled, 100 * points.mean("task"), 100 * _error(points), fmt="o", ms=5.5, capsize=3,
                  color="#0072b2", label="exact sampling (NUTS)")  # fmt: skip
    for name, style, colour in zip(SUBNETWORKS, ("--", ":", "-."), ("0.35", "#009e73", "#cc79a7"), strict=True):
        level = 100 * float(numbers.limit_accuracy.sel(subnetwork=name).mean())
        axis.axhline(level, ls=style, lw=1.4, color=colour, label=rf"$N=\infty$, {name}: {level:.1f}")
    axis.set(xscale="log", xlabel="width  $N$", ylabel="accuracy on fresh chains  (%)")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.45 * (high - low), high)  # room for the legend
    axis.grid(alpha=0.25)
    axis.legend(frameon=True, framealpha=0.9, loc="lower left")
    axis.set_title("narrow networks choose their paths", fontsize=10.5)


def _order_parameter(axis: Axes, values: xr.DataArray, title: str) -> None:
    """The matrix over pairs of paths as colours and numbers; 1 on the diagonal is what no learning would give."""
    U, error = values.mean("task").values, _error(values).values
    reach = abs(U).max()
    axis.imshow(U, cmap="RdBu_r", vmin=-reach, vmax=reach)
    for i, j in np.ndindex(*U.shape):
        dark = abs(U[i, j]) > 0.55 * reach
        axis.text(j, i, f"{U[i, j]:.2f}\n±{error[i, j]:.2f}", ha="center", va="center", fontsize=8.5,
                  color="white" if dark else "black")  # fmt: skip
    axis.set_xticks(range(len(PATHS)), PATHS, rotation=30, ha="right", fontsize=9)
    axis.set_yticks(range(len(PATHS)), PATHS, fontsize=9)
    axis.set_title(rf"order parameter $U^{{\pi\pi'}}$: {title}" + "\n" + r"($N=\infty$: the identity)", fontsize=10)


def _alignment(axis: Axes, numbers: xr.Dataset) -> None:
    for width, label, colour in ((np.inf, r"$N=\infty$", "0.45"), (NARROW, f"$N={NARROW}$, theory", "#d55e00")):
        overlap = numbers.alignment.sel(width=width)
        rank = np.arange(1, overlap.sizes["component"] + 1)
        axis.errorbar(rank, overlap.mean("task"), _error(overlap), fmt=".-", lw=1, capsize=2, color=colour, label=label)
    axis.set(xlabel="principal component of the kernel", ylabel=r"overlap with the labels  $|e_r\cdot Y|/\sqrt{P}$")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.legend(frameon=True, framealpha=0.9)
    axis.set_title("kernel-task alignment", fontsize=10.5)
