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
from .making.drawing import BLUE, GREEN, ORANGE, PINK, panels
from .making.parts import Parts
from .making.record import Agreement, Claim, Findings, number_claim
from .making.registry import Size, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from ..tasks.hidden_markov import HiddenMarkovTask

PAPER = "Tiberi et al., arXiv:2405.15926"
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
QUICK_TASKS = {"tasks": 6, "test_examples": 1000, "sampled": [10, 100], "draws": 200}
PAPER_TASKS = {"tasks": 16, "test_examples": 1000, "sampled": [10, 30, 100, 300, 1000], "draws": 1000}
HERE, APPENDIX = "Section 4.1", "Appendix G.2"


@figure(
    "paths/fig2",
    shows="Narrow networks choose their paths: accuracy against width, order parameter, kernel-task alignment",
    source=f"{PAPER}, Fig. 2",
    quick=Size(1.5, 1.0, QUICK_TASKS),
    paper=Size(20.0, 2.0, PAPER_TASKS),
)
def fig2(
    parts: Parts, *, tasks: int, test_examples: int, sampled: Sequence[int], draws: int
) -> tuple[Figure, Findings]:
    """Panels (c), (d), (e), theory and exact sampling: all four paths, and two of the paths on noisier chains."""
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
        _paired("accuracy (%), four paths", four),
        _paired("accuracy (%), two paths, perpendicular noise 5", two),
        _of_order_parameter(four),
    ]
    return picture, Findings(agreements, _claims_of_fig2(four, two), _REMARKS)


_REMARKS = (
    "Means over draws of the task, with standard errors over them; the paper shows a single draw.",
    "The error bars of the curves are those of the tasks, common to theory and sampling: their distance is that of "
    "pairs.",
    "Theory is the limit of large width at fixed ratio of examples to width; at width 10 the entries of U are off by 5 "
    "to 10 %, the predictions hardly.",
)


def _over_tasks(parts: Parts, name: str, tasks: int, common: Mapping[str, Any], **options: Any) -> xr.Dataset:
    """Compute the numbers of several draws of the task and store each draw as soon as it is done."""
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
    """Compute accuracy, order parameter and alignment for one draw of the task, with one sampling chain per width."""
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


def _paired(curve: str, numbers: xr.Dataset) -> Agreement:
    """Compare sampling with theory task by task, so that the differences between tasks cancel."""
    difference = 100 * (numbers.sampled_accuracy - numbers.accuracy.sel(width=numbers.sampled))
    mean, error = difference.mean("task"), _error(difference)
    z = (mean / error).values[error.values > 0]
    by_width = {int(w): (float(m) / 100, float(e) / 100) for w, m, e in zip(mean.sampled, mean, error, strict=True)}
    return Agreement(curve, len(z), float((z**2).sum()), float(abs(z).max(initial=0.0)), by_width)


def _of_order_parameter(numbers: xr.Dataset) -> Agreement:
    """Compare the order parameter's entry for the good path with sampling, by width."""
    at = {"path": GOOD, "path_other": GOOD}
    theory = numbers.order_parameter.sel(width=numbers.sampled).isel(at)
    relative = numbers.sampled_order_parameter.isel(at) / theory - 1
    mean, error = relative.mean("task"), _error(relative)
    z = (mean / error).values
    by_width = {int(w): (float(m), float(e)) for w, m, e in zip(mean.sampled, mean, error, strict=True)}
    return Agreement("order parameter of the good path", len(z), float((z**2).sum()), float(abs(z).max()), by_width)


def _claims_of_fig2(four: xr.Dataset, two: xr.Dataset) -> list[Claim]:
    limit = {name: 100 * four.limit_accuracy.sel(subnetwork=name) for name in SUBNETWORKS}
    narrow, both = 100 * four.accuracy.sel(width=NARROW), limit["good and denoising"]
    gain = 100 * (two.accuracy.sel(width=NARROW) - two.accuracy.sel(width=np.inf))
    alone = [_of_one_draw(f"accuracy of the {name} path alone (%)", 50.0, limit[name], 5.0) for name in PATHS[1:]]
    return [
        _of_one_draw("accuracy of the good path alone (%)", 94, limit["good"]),
        *alone,
        _larger(f"width {NARROW} beats the Gaussian-process limit (%)", HERE, narrow, limit["all paths"]),
        _larger("good and denoising beat the good path, both in the limit (%)", HERE, both, limit["good"]),
        _larger(f"width {NARROW} beats good and denoising in the limit (%)", HERE, narrow, both),
        _larger("with perpendicular noise 5 the gain over the limit is larger (%)", HERE, gain, narrow - both),
        *_claims_of_order_parameter(four.order_parameter),
    ]


def _claims_of_order_parameter(U: xr.DataArray) -> list[Claim]:
    narrow, wide = U.sel(width=NARROW), U.sel(width=WIDE)
    weights = [float(narrow.isel(path=k, path_other=k).mean()) for k in range(4)]
    cross = narrow.isel(path=GOOD, path_other=DENOISING)
    away = [float(abs(at.mean("task").values - np.eye(4)).max()) for at in (wide, narrow)]
    return [
        Claim(
            f"adversarial paths are suppressed at width {NARROW}", "yes", HERE,
            "weights " + ", ".join(f"{w:.2f}" for w in weights), max(weights[1], weights[3]) < 1 < weights[2],
        ),
        _larger("good and denoising paths anticorrelate: 0 against U", HERE, 0 * cross, cross),
        Claim(
            f"U at width {WIDE} is very close to the identity", "yes", HERE,
            f"largest distance {away[0]:.2f}, at width {NARROW} {away[1]:.1f}", away[0] < 0.05 * away[1],
        ),
    ]  # fmt: skip


def _of_one_draw(what: str, published: float, values: xr.DataArray, rounding: float = 0.5) -> Claim:
    """Judge a number published for one draw of the task: it may differ from the mean by the spread of the draws.

    "About 50 %, chance" is taken to mean 45 to 55 %.
    """
    spread = float(values.std("task", ddof=1)) * np.sqrt(1 + 1 / values.sizes["task"])
    claim = number_claim(what, published, HERE, float(values.mean()), spread, rounding=rounding)
    return claim if claim.holds or values.sizes["task"] > 3 else replace(claim, holds=None)  # too few for a spread


def _larger(what: str, source: str, first: xr.DataArray, second: xr.DataArray) -> Claim:
    """Judge the claim that the first number is larger than the second, by differences task by task."""
    difference = first - second
    gap, error = float(difference.mean()), float(_error(difference))
    found = f"{float(first.mean()):.1f} against {float(second.mean()):.1f}: {gap:+.2f} ± {error:.2f}"
    return Claim(what, "yes", source, found, gap > 0 if abs(gap) > 3 * error else None)


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
    """Draw the matrix over pairs of paths as colours and numbers; without learning it is the identity."""
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


@figure(
    "paths/fig5",
    shows="Kernels of single paths, of all in the limit and at width 10; two paths with a uniform head",
    source=f"{PAPER}, Fig. 5",
    quick=Size(1.0, 1.0, QUICK_TASKS),
    paper=Size(12.0, 2.0, PAPER_TASKS),
)
def fig5(
    parts: Parts, *, tasks: int, test_examples: int, sampled: Sequence[int], draws: int
) -> tuple[Figure, Findings]:
    """Panels (b), kernels between examples ordered by class, and (c), a uniform head in place of the random head."""
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
    claims = [
        _larger(f"with a uniform head too, width {NARROW} beats the limit (%)", APPENDIX, narrow, limit),
        _alignment_claim(kernels),
    ]
    remarks = ["Kernels are those of one draw of the task (seed 0), less their mean."]
    return picture, Findings([_paired("accuracy (%), uniform head", uniform)], claims, remarks)


def _kernels() -> xr.Dataset:
    """Compute kernels (examples, examples): each path alone, all paths in the limit, all paths at a small width."""
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


def _alignment_claim(kernels: xr.Dataset) -> Claim:
    """Judge how well the kernels separate the classes, by their centred alignment with the labels."""
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
    return Claim(
        "the good path's kernel is aligned with the task, adversarial ones are not, and learning restores it",
        "yes", APPENDIX, f"centred alignment: {found}", holds,
    )  # fmt: skip
