"""The figures of Tiberi, Mignacco, Irie, Sompolinsky, arXiv:2405.15926: attention paths at finite width.

Networks of two layers with two heads each classify hidden Markov chains. The paper shows one draw of the task; here
every number is a mean over several draws, with its standard error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from ..core.plot import SIGNED_COLOURS
from .making.claims import PublishedFigure
from .making.drawing import BLUE, GREEN, ORANGE, PINK, panels
from .making.parts import Parts
from .making.record import Agreement, Claim, Findings
from .making.registry import figure_of_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from ..tasks.hidden_markov import HiddenMarkovTask

PATHS = ("good", "adversarial", "denoising", "adversarial'")
GOOD, DENOISING = 0, 2
#: Sub-networks whose Gaussian-process limit is shown, by name: the heads (layer, head) that are removed.
SUBNETWORKS: dict[str, tuple[tuple[int, int], ...]] = {
    "all paths": (),
    "good": ((0, 1), (1, 1)),
    "adversarial": ((0, 1), (1, 0)),
    "denoising": ((0, 0), (1, 1)),
    "adversarial'": ((0, 0), (1, 0)),
    "good and denoising": ((1, 1),),
}
NARROW, WIDE = 10, 1000
COMPONENTS = 30
#: Temperature and number of training examples in the paper.
TEMPERATURE, EXAMPLES = 0.01, 100


@figure_of_paper("paths/fig2")
def fig2(
    parts: Parts, said: PublishedFigure, *, tasks: int, test_examples: int, sampled: Sequence[int], draws: int
) -> tuple[Figure, Findings]:
    """Draw panels (c), (d), (e): all four paths, and two of the paths on noisier chains.

    Theory is compared with exact sampling at the widths ``sampled``. ``tasks`` is the number of draws of the task,
    ``draws`` that of the sampler.
    """
    common = {"test_examples": test_examples, "sampled": list(sampled), "draws": draws}
    four = _over_tasks(parts, "four_paths", tasks, common)
    two = _over_tasks(parts, "two_paths", tasks, common, two_paths=True, noise_perpendicular=5.0)
    picture, axes = panels(2, 3, size=(13.5, 8.2))
    _accuracy(axes[0], four, ("good", "good and denoising"), "four paths")
    _order_parameter(axes[1], four.order_parameter.sel(width=NARROW), f"theory, $N={NARROW}$", PATHS)
    narrow = four.sampled_order_parameter.sel(sampled=NARROW)
    _order_parameter(axes[2], narrow, f"exact sampling, $N={NARROW}$", PATHS)
    _alignment(axes[3], four)
    _order_parameter(axes[4], four.order_parameter.sel(width=WIDE), f"theory, $N={WIDE}$", PATHS)
    _accuracy(axes[5], two, (), r"good and denoising alone, $\sigma_\perp=5$")
    agreements = [
        _of_accuracy("accuracy (%), four paths", four),
        _of_accuracy("accuracy (%), two paths, perpendicular noise 5", two),
        _of_order_parameter(four),
    ]
    return picture, Findings(agreements, _claims_of_fig2(said, four, two), said.remarks())


def _over_tasks(parts: Parts, name: str, tasks: int, common: Mapping[str, Any], **options: Any) -> xr.Dataset:
    """Return the numbers of `_task` for seeds 0 to ``tasks`` - 1, along ``task``; each is stored when it is done."""
    made = [
        parts.dataset(
            f"{name}_{seed}", {"seed": seed, **common, **options}, lambda seed=seed: _task(seed, **common, **options)
        )
        for seed in range(tasks)
    ]
    joined = xr.concat([part.drop_attrs() for part in made], dim="task")
    assert isinstance(joined, xr.Dataset)
    return joined


def _task(seed: int, *, test_examples: int, sampled: Sequence[int], draws: int, **options: Any) -> xr.Dataset:
    """Return accuracy, order parameter and alignment, by theory and by a sampling chain per width in ``sampled``.

    ``options`` of `hidden_markov` and ``seed`` determine the task. Without options, limits of SUBNETWORKS are added.
    """
    data = asx.tasks.hidden_markov(EXAMPLES, test_examples, seed, **options)
    problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=TEMPERATURE)
    fresh = data.test_inputs, data.test_labels
    widths = np.unique([NARROW, 30, 50, 100, 300, 500, WIDE, *sampled]).astype(float)
    theory = asx.solve(problem, width=[*widths, np.inf], progress=False)
    sampler = asx.NUTS(warmup=max(150, draws // 2), draws=draws)
    runs = asx.simulate(problem, sampler, width=[float(w) for w in sampled], seeds=[seed], progress=False).isel(seed=0)
    found = {
        "accuracy": theory.evaluate(*fresh).accuracy,
        "sampled_accuracy": _by_sampled_width(runs.evaluate(*fresh).accuracy),
        "order_parameter": theory.order_parameter,
        "sampled_order_parameter": _by_sampled_width(runs.order_parameter),
        "r_hat": _by_sampled_width(runs.r_hat),
        "alignment": theory.alignment(COMPONENTS),
    }
    if not options:
        limits = [_limit_accuracy(data, left_out) for left_out in SUBNETWORKS.values()]
        found["limit_accuracy"] = xr.DataArray(limits, dims="subnetwork", coords={"subnetwork": list(SUBNETWORKS)})
    return xr.Dataset(found).drop_vars("seed", errors="ignore")


def _by_sampled_width(values: xr.DataArray) -> xr.DataArray:
    """Rename the dimension ``width`` to ``sampled``: the sampled widths differ from those solved by theory."""
    return values.drop_vars("seed", errors="ignore").rename(width="sampled")


def _limit_accuracy(data: HiddenMarkovTask, left_out: tuple[tuple[int, int], ...]) -> float:
    """Return the accuracy of the Gaussian-process limit of the network without the heads ``left_out``."""
    network = asx.prune(data.network, left_out) if left_out else data.network
    problem = asx.PathPosterior(network, data.inputs, data.labels, temperature=TEMPERATURE)
    limit = asx.solve(problem, width=np.inf, progress=False)
    return float(limit.evaluate(data.test_inputs, data.test_labels).accuracy)


def _error(values: xr.DataArray) -> xr.DataArray:
    """Return the standard error of the mean over tasks."""
    return values.std("task", ddof=1) / np.sqrt(values.sizes["task"])


# ---------------------------------------------------------------------------------------------- findings


def _of_accuracy(curve: str, numbers: xr.Dataset) -> Agreement:
    """Compare accuracies of sampling and theory task by task, so that the differences between tasks cancel."""
    return _paired(curve, 100 * (numbers.sampled_accuracy - numbers.accuracy.sel(width=numbers.sampled)), 100)


def _of_order_parameter(numbers: xr.Dataset) -> Agreement:
    """Compare the order parameter's entry for the good path with sampling, by width."""
    at = {"path": GOOD, "path_other": GOOD}
    theory = numbers.order_parameter.sel(width=numbers.sampled).isel(at)
    return _paired("order parameter of the good path", numbers.sampled_order_parameter.isel(at) / theory - 1, 1)


def _paired(curve: str, difference: xr.DataArray, unit: float) -> Agreement:
    mean, error = difference.mean("task"), _error(difference)
    z = (mean / error).values[error.values > 0]
    by_width = {int(w): (float(m) / unit, float(e) / unit) for w, m, e in zip(mean.sampled, mean, error, strict=True)}
    return Agreement(curve, len(z), float((z**2).sum()), float(abs(z).max(initial=0.0)), by_width)


def _claims_of_fig2(said: PublishedFigure, four: xr.Dataset, two: xr.Dataset) -> list[Claim]:
    limit = {name: 100 * four.limit_accuracy.sel(subnetwork=name) for name in SUBNETWORKS}
    narrow, both = 100 * four.accuracy.sel(width=NARROW), limit["good and denoising"]
    gain = 100 * (two.accuracy.sel(width=NARROW) - two.accuracy.sel(width=np.inf))
    return [
        _of_one_draw(said, "good-path", limit["good"]),
        *(_of_one_draw(said, "chance-paths", limit[name], path=name) for name in PATHS[1:]),
        said("narrow-beats-limit", *_larger(narrow, limit["all paths"])),
        said("denoising-helps", *_larger(both, limit["good"])),
        said("narrow-beats-both", *_larger(narrow, both)),
        said("noise-adds", *_larger(gain, narrow - both)),
        *_claims_of_order_parameter(said, four.order_parameter),
    ]


def _claims_of_order_parameter(said: PublishedFigure, U: xr.DataArray) -> list[Claim]:
    narrow, wide = U.sel(width=NARROW), U.sel(width=WIDE)
    weights = [float(narrow.isel(path=k, path_other=k).mean()) for k in range(4)]
    cross = narrow.isel(path=GOOD, path_other=DENOISING)
    away = [float(abs(at.mean("task").values - np.eye(4)).max()) for at in (wide, narrow)]
    listed = "weights " + ", ".join(f"{w:.2f}" for w in weights)
    apart = f"largest distance {away[0]:.2f}, at width {NARROW} {away[1]:.1f}"
    return [
        said("suppressed-paths", [max(weights[1], weights[3]), 1.0, weights[2]], listed),
        said("anticorrelated-paths", *_larger(0 * cross, cross)),
        said("wide-identity", away[0] / away[1], apart),
    ]


def _of_one_draw(said: PublishedFigure, claim: str, values: xr.DataArray, **words: str) -> Claim:
    """Judge a number published for one draw of the task, which may differ from our mean by the spread of draws.

    ``values`` are (task,). With at most 3 tasks the number cannot be refuted.
    """
    spread = float(values.std("task", ddof=1)) * np.sqrt(1 + 1 / values.sizes["task"])
    judged = said(claim, float(values.mean()), error=spread, **words)
    return judged if judged.holds or values.sizes["task"] > 3 else replace(judged, holds=None)  # too few for a spread


def _larger(first: xr.DataArray, second: xr.DataArray) -> tuple[float, str, float]:
    """Return the mean over tasks of ``first - second``, a text with both means, and the error of the difference."""
    difference = first - second
    gap, error = float(difference.mean()), float(_error(difference))
    return gap, f"{float(first.mean()):.1f} against {float(second.mean()):.1f}: {gap:+.2f} ± {error:.2f}", error


# ---------------------------------------------------------------------------------------------- drawing


def _accuracy(axis: Axes, numbers: xr.Dataset, subnetworks: Sequence[str], title: str) -> None:
    finite = 100 * numbers.accuracy.sel(width=numbers.width[np.isfinite(numbers.width)])
    mean, error = finite.mean("task"), _error(finite)
    axis.plot(finite.width, mean, "-", color=ORANGE, label="theory")
    axis.fill_between(finite.width, mean - error, mean + error, color=ORANGE, alpha=0.2, lw=0)
    points = 100 * numbers.sampled_accuracy
    axis.errorbar(
        points.sampled, points.mean("task"), _error(points), fmt="o", markerfacecolor="white", capsize=3, color=BLUE,
        label="exact sampling (NUTS)", zorder=3,
    )  # fmt: skip
    limit = 100 * float(numbers.accuracy.sel(width=np.inf).mean())
    axis.axhline(limit, ls="-", lw=1.2, color="0.35", label=rf"$N=\infty$: {limit:.1f}")
    for name, style, color in zip(subnetworks, ("--", ":"), (GREEN, PINK), strict=False):
        level = 100 * float(numbers.limit_accuracy.sel(subnetwork=name).mean())
        axis.axhline(level, ls=style, lw=1.5, color=color, label=rf"$N=\infty$, {name} alone: {level:.1f}")
    axis.set(xscale="log", xlabel="width  $N$", ylabel="accuracy on fresh chains  (%)")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.6 * (high - low), high)  # room for the legend
    axis.legend(loc="lower left")
    _entitle(axis, title)


def _order_parameter(axis: Axes, values: xr.DataArray, title: str, names: Sequence[str]) -> None:
    """Draw order parameters (task, path, path_other): colours and numbers of the mean, which is I without learning."""
    U, error = values.mean("task").values, _error(values).values
    reach = abs(U).max()
    axis.imshow(U, cmap=SIGNED_COLOURS, vmin=-reach, vmax=reach)
    axis.grid(visible=False)
    for i, j in np.ndindex(*U.shape):
        color = "white" if abs(U[i, j]) > 0.55 * reach else "black"
        axis.text(j, i, f"{U[i, j]:.2f}\n±{error[i, j]:.2f}", ha="center", va="center", fontsize=9, color=color)
    axis.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=9.5)
    axis.set_yticks(range(len(names)), names, fontsize=9.5)
    _entitle(axis, rf"$U^{{\pi\pi'}}$, {title}")


def _alignment(axis: Axes, numbers: xr.Dataset) -> None:
    for width, label, color, marker in (
        (np.inf, r"$N=\infty$", "0.35", "s"),
        (NARROW, f"$N={NARROW}$", ORANGE, "o"),
    ):
        overlap = numbers.alignment.sel(width=width)
        rank = np.arange(1, overlap.sizes["component"] + 1)
        axis.errorbar(
            rank, overlap.mean("task"), _error(overlap), fmt=f"{marker}-", ms=3.5, lw=1, capsize=2, color=color,
            label=f"theory, {label}",
        )  # fmt: skip
    axis.set(xlabel="principal component of the kernel", ylabel=r"overlap with the labels  $|e_r\cdot Y|/\sqrt{P}$")
    axis.set_ylim(bottom=0)
    axis.legend()
    _entitle(axis, "kernel-task alignment")


def _entitle(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=11)


# ---------------------------------------------------------------------------------------------- kernels


@figure_of_paper("paths/fig5")
def fig5(
    parts: Parts, said: PublishedFigure, *, tasks: int, test_examples: int, sampled: Sequence[int], draws: int
) -> tuple[Figure, Findings]:
    """Draw panels (b), kernels between examples, and (c), a uniform head in place of the random head; see `fig2`."""
    kernels = parts.dataset("kernels", {"seed": 0, "width": NARROW}, _kernels)
    common = {"test_examples": test_examples, "sampled": list(sampled), "draws": draws}
    noisy = {"two_paths": True, "noise_perpendicular": 5.0}
    uniform = _over_tasks(parts, "uniform_head", tasks, common, **noisy, second_head="uniform")
    picture, axes = panels(2, 4, size=(15.5, 7.6))
    images = [_kernel(axis, kernels[name], str(name)) for axis, name in zip(axes, kernels.data_vars, strict=False)]
    picture.colorbar(images[0], ax=axes[:4], shrink=0.9, label="kernel less its mean (scaled)")
    _accuracy(axes[6], uniform, (), r"uniform head, $\sigma_\perp=5$")
    _order_parameter(axes[7], uniform.order_parameter.sel(width=NARROW), f"uniform head, $N={NARROW}$", PATHS[::2])
    narrow, limit = (100 * uniform.accuracy.sel(width=width) for width in (NARROW, np.inf))
    claims = [said("uniform-head", *_larger(narrow, limit)), said("aligned-kernels", *_aligned(kernels))]
    return picture, Findings([_of_accuracy("accuracy (%), uniform head", uniform)], claims, said.remarks())


def _kernels() -> xr.Dataset:
    """Return kernels (example, example_other) by name: of each path alone, and of all paths at N = inf and NARROW."""
    data = asx.tasks.hidden_markov(EXAMPLES, 2, 0)

    def kernel(network: asx.AttentionPaths, width: float) -> np.ndarray:
        problem = asx.PathPosterior(network, data.inputs, data.labels, temperature=TEMPERATURE)
        return asx.solve(problem, width=width, progress=False).kernel().values

    alone = {name: kernel(asx.prune(data.network, SUBNETWORKS[name]), np.inf) for name in PATHS}
    total = {"all paths, limit": kernel(data.network, np.inf), f"all paths, N = {NARROW}": kernel(data.network, NARROW)}
    return xr.Dataset({name: (("example", "example_other"), values) for name, values in (alone | total).items()})


def _kernel(axis: Axes, values: xr.DataArray, title: str) -> AxesImage:
    """Draw a kernel, centred and scaled to show its structure; examples of the first class come first."""
    K = values.values - values.values.mean()
    reach = np.quantile(abs(K), 0.99)
    image = axis.imshow(K / reach, cmap=SIGNED_COLOURS, vmin=-1, vmax=1, interpolation="nearest")
    axis.grid(visible=False)
    half = len(K) / 2 - 0.5
    axis.axhline(half, color="black", lw=0.7)
    axis.axvline(half, color="black", lw=0.7)
    axis.set(xlabel="example (class + then −)", ylabel="example")
    _entitle(axis, title)
    return image


def _aligned(kernels: xr.Dataset) -> tuple[bool, str]:
    """Return whether the claim on alignments of centred kernels with the labels holds, and a text with all of them."""
    y = np.where(np.arange(EXAMPLES) < EXAMPLES // 2, 1.0, -1.0)
    centre = np.eye(EXAMPLES) - 1 / EXAMPLES

    def aligned(name: str) -> float:
        K = centre @ kernels[name].values @ centre
        return float(y @ K @ y / (EXAMPLES * np.linalg.norm(K)))

    values = {name: aligned(name) for name in map(str, kernels.data_vars)}
    holds = (
        values["good"] > 3 * max(values["adversarial"], values["adversarial'"])
        and values[f"all paths, N = {NARROW}"] > values["all paths, limit"]
    )
    found = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    return holds, f"centred alignment: {found}"
