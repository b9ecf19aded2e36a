"""Claims on the figures of Troiani et al., arXiv:2502.00901, from text and captions, compared with our numbers.

"Released" numbers are from the data that the authors published with their code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..core.compare import Comparison
from ..core.result import Result
from ..core.words import format_number
from .making.record import Claim, Findings, agreement, number_claim

if TYPE_CHECKING:
    import asymptotix as asx

PAPER = "Troiani et al., ICML 2025, arXiv:2502.00901"
#: Released state evolution: alpha -> overlap of layer 1, and alpha -> plug-in error.
RELEASED_OVERLAP = {0.8: 0.0, 0.9: 0.451, 1.2: 0.8226}
RELEASED_ERROR = {0.5: 0.1829, 0.9: 0.0290, 1.2: 0.0120}
#: Released runs of gradient descent: layer -> range of the number of batches until its cosine exceeds 1/2.
RELEASED_PASSAGES = {2: (53, 141), 1: (865, 9479)}
#: Released thresholds: skip -> (layer 2, layer 1).
RELEASED_THRESHOLDS = {
    0.1: (0.1914, 0.4225), 0.5: (0.1864, 0.7552), 0.75: (0.1610, 0.8237), 1.0: (0.1436, 0.7936), 1.5: (0.1241, 0.6581),
    2.0: (0.1119, 0.5133), 2.5: (0.1029, 0.3907), 3.0: (0.0943, 0.3042), 4.0: (0.0827, 0.1963),
}  # fmt: skip


def diagonal_of(layer: int) -> dict[str, Any]:
    """Return the coordinates of a layer's diagonal entry; layers are counted from one."""
    return {"index": layer - 1, "index_other": layer - 1}


def _script(name: str) -> str:
    return f"examples/errata/{name}.py"


def two_layer_findings(comparison: Comparison, held: Result, informed: Result, limits: Result) -> Findings:
    """Return the findings on Fig. 1 left."""
    theory, runs = comparison.theory, comparison.experiment
    below_exact = comparison.sel(alpha=slice(None, float(limits.exact_recovery)))  # above it, runs do not scatter
    curves = [(f"overlap of layer {layer}", "overlap", diagonal_of(layer)) for layer in (2, 1)]
    curves += [("plug-in error", "plugin_error", {}), ("error of the posterior mean", "test_error", {})]
    agreements = [agreement(f"{label}, below exact recovery", below_exact, name, **at) for label, name, at in curves]
    claims = [
        *_threshold_claims(limits),
        _plateau_claim(theory, runs),
        *_error_claims(theory, held, limits),
        _no_gap_claim(theory, informed),
        _diagonal_claim(runs),
    ]
    flagged = int((~runs.ds["converged"]).sum())
    remarks = [
        "GAMP is run in stages with variances from state evolution, without side information; the published runs "
        "iterate Algorithm 1 from a random start, with 10⁻³ added to the variances.",
        f"{flagged} of {runs.ds['converged'].size} runs say that they had not settled or that the start of a layer was "
        "hard to detect; all are in the means.",
        "Just above a threshold small systems lag behind theory: their scatter is then larger than their mean.",
        "Lines of theory carry a band of their numerical error, which is mostly thinner than the line.",
    ]
    return Findings(agreements, claims, remarks)


def _threshold_claims(limits: Result) -> list[Claim]:
    second, first = map(float, limits.weak_recovery.values)
    second_error, first_error = map(float, limits.weak_recovery_err.values)
    return [
        number_claim(
            "first threshold, layer 2", 0.14, "Section 3.1; released 0.1436", first, first_error,
            rounding=0.005, script=_script("first_threshold"),
        ),
        number_claim(
            "second threshold, layer 1", 0.79, "Section 3.1; released 0.794", second, second_error,
            rounding=0.005, script=_script("second_threshold"),
        ),
        Claim(
            "layers are learned one after the other, the second layer first", "yes", "Section 3.1",
            f"layer 2 at {first:.4f}, layer 1 at {second:.4f}", first + 3 * first_error < second,
        ),
    ]  # fmt: skip


def _plateau_claim(theory: Result, runs: Result) -> Claim:
    at = theory.ds.sel(alpha=1.2, method="nearest")
    overlap = float(at["overlap"].isel(diagonal_of(1)))
    measured = runs.ds["overlap"].isel(diagonal_of(1)).isel(dim=-1).sel(alpha=1.2, method="nearest")
    size, seeds = int(runs.ds["dim"][-1]), measured.sizes["seed"]
    least = f"GAMP at D = {size} at least {float(measured.min()):.4f} in {seeds} runs"
    return Claim(
        f"overlap of layer 1 at alpha = {float(at['alpha']):g}, on a plateau above alpha = 1",
        "0.82",
        "Fig. 1 left; released data",
        f"{overlap:.4f} ({at['status'].item()}); {least}",
        abs(overlap - 0.82) < 0.02,
        _script("exact_recovery"),
    )


def _error_claims(theory: Result, held: Result, limits: Result) -> list[Claim]:
    ds, (second, first) = theory.ds, map(float, limits.weak_recovery.values)
    below = ds.sel(alpha=slice(None, first))
    bayes, bayes_error, plugin = (
        float(below[name].isel(alpha=0)) for name in ("test_error", "test_error_err", "plugin_error")
    )
    spread = float(below["plugin_error"].max() - below["plugin_error"].min())
    fall = float(ds["plugin_error"].sel(alpha=second, method="nearest")) / plugin
    beyond = ds.sel(alpha=slice(second, None))
    later = held.ds.sel(alpha=beyond["alpha"], method="nearest")
    gain = later["plugin_error"] - beyond["plugin_error"]
    return [
        number_claim(
            "Bayes error, eq. (11), while nothing is learned", 0.387, "Fig. 1 left, black; released data", bayes,
            bayes_error, rounding=0.001, script=_script("bayes_error"),
        ),
        number_claim(
            "the same, if the black line is the plug-in error", 0.387, "released data", plugin,
            float(below["plugin_error_err"].isel(alpha=0)), rounding=0.001,
        ),
        Claim(
            "error constant below the first threshold", "yes", "Section 3.1", f"it varies by {spread:.1g}",
            spread < 0.01 * plugin,
        ),
        Claim(
            "sizable decrease of the error between the thresholds", "yes", "Section 3.1",
            f"plug-in error falls to {100 * fall:.0f} % of its first value", fall < 0.5,
        ),
        Claim(
            "yet another decrease once layer 1 is learned", "yes", "Section 3.1",
            f"plug-in error {float(gain.max()):.3f} below that with layer 1 held at zero, at most",
            bool((gain >= 0).all() and (gain > 0).any()),
        ),
    ]  # fmt: skip


def _no_gap_claim(theory: Result, informed: Result) -> Claim:
    """Judge whether state evolution started from full knowledge ends at the same point."""
    other = theory.ds.sel(alpha=informed.ds["alpha"], method="nearest")
    gap = abs(informed.ds["overlap"].values - other["overlap"].values)
    error = 3 * np.hypot(informed.ds["overlap_err"].values, other["overlap_err"].values) + 1e-9
    at = ", ".join(f"{alpha:g}" for alpha in informed.ds["alpha"].values)
    return Claim(
        "strong side information does not change the end of GAMP", "no gap", "Section 3.1",
        f"overlaps of state evolution from full knowledge differ by at most {gap.max():.1g} at alpha = {at}",
        bool((gap <= error).all()),
    )  # fmt: skip


def _diagonal_claim(runs: Result) -> Claim:
    cross = runs.ds["overlap"].isel(index=0, index_other=1).isel(dim=-1)
    size = int(runs.ds["dim"][-1])
    largest = float(abs(cross.mean("seed")).max())
    return Claim(
        "off-diagonal overlaps vanish", "yes", "Section 3.1",
        f"means over runs at D = {size} are below {largest:.2g}", bool(largest < 3 / np.sqrt(size)),
    )  # fmt: skip


def skip_findings(limits: Result) -> Findings:
    """Return the findings on Fig. 1 right."""
    ds, bound = limits.ds, 1 / 6
    claims = []
    for k, (row, name) in enumerate(((1, "first"), (0, "second"))):
        for skip, values in RELEASED_THRESHOLDS.items():
            if not np.isclose(ds["skip"], skip).any() or skip not in (0.1, 0.5, 1.0, 2.0, 4.0):
                continue
            at = ds.sel(skip=skip, method="nearest").isel(index=row)
            claims.append(
                number_claim(
                    f"{name} threshold at skip {skip:g}", values[k], "released data", float(at["weak_recovery"]),
                    float(at["weak_recovery_err"]), rounding=0.0005, script=_script(f"{name}_threshold"),
                )
            )  # fmt: skip
    second, first = ds["weak_recovery"].values.T
    spread = f"layer 1 between {second.min():.3f} and {second.max():.3f}, layer 2 between {first.min():.3f} and "
    claims.append(
        Claim(
            "the three phases subsist across a wide range of skips", "yes", "Section 3.1",
            f"{spread}{first.max():.3f}", bool((first < second).all()),
        )
    )  # fmt: skip
    remarks = [
        "Any rank-one row obeys alpha ≥ 1/(M(M+1)) = 1/6 as long as nothing else is learned, because what an output "
        "tells of zzᵀ is at most zzᵀ itself; published first thresholds are below that for skips of "
        f"{min(skip for skip, (low, _) in RELEASED_THRESHOLDS.items() if low < bound):g} and more.",
        "The printed formula for the second threshold, eqs. (177) and (178), takes layer 2 as known perfectly. Read "
        "literally it gives 1/6 for every skip, since output and layer 2 then fix the indices of layer 1 up to a sign; "
        "here layer 2 is known as far as it is at the threshold.",
    ]
    return Findings(claims=claims, remarks=remarks)


def iteration_findings(cosines: xr.DataArray, comparison: Comparison) -> Findings:
    """Return the findings on Fig. 2 top; ``cosines`` (seed, iteration, index) come from runs of Algorithm 1."""
    agreements = [
        agreement(f"overlap of layer {layer} by iteration", comparison, "overlap", **diagonal_of(layer))
        for layer in (2, 1)
    ]
    second, first = (_passage(cosines.isel(index=row), 0.5) for row in (1, 0))
    begun = _passage(cosines.isel(index=0), 0.2)
    runs = np.flatnonzero(np.isfinite(begun))
    known = min(float(cosines[run, int(begun[run]) - 1, 1]) for run in runs) if len(runs) else np.nan
    followed = comparison.ds["overlap_theory"].isel(diagonal_of(1)).values.ravel()
    learned, ends = np.isfinite(first), cosines[:, -1, 0].values
    others = "" if learned.all() else f"; the others end at a cosine of {ends[~learned].max():.2f} at most"
    seeds, in_turn = cosines.sizes["seed"], second < np.nan_to_num(first, nan=np.inf)
    claims = [
        Claim(
            "layer 2 is learned before layer 1", "yes", "Section 3.3",
            f"in {int(in_turn.sum())} of {seeds} runs of Algorithm 1: cosine above 1/2 after {_range(second)} "
            f"iterations, for layer 1 after {_range(first)}",
            bool(in_turn.all()),
        ),
        Claim(
            "Algorithm 1 goes on to learn layer 1", "yes", "Section 3.3, one run",
            f"in {int(learned.sum())} of {seeds} runs with their own data and starts{others}",
            True if learned.all() else None if learned.any() else False,  # the paper shows one run, and some of ours do
            _script("algorithm_one"),
        ),
        Claim(
            "layer 1 commences after approximately 10 steps", "10", "Section 3.3, one run",
            f"in Algorithm 1 its cosine stays above 0.2 after {_range(begun)} iterations; from side information it "
            f"exceeds 1/2 after {int(np.argmax(followed > 0.25)) + 1}",
            bool(0.5 <= np.nan_to_num(begun, nan=np.inf).min() / 10 <= 2), _script("algorithm_one"),
        ),
        Claim(
            "by then layer 2 is almost perfectly reconstructed", "yes", "Section 3.3",
            f"its cosine is then {known:.3f} at least", bool(known > 0.9),
        ),
    ]  # fmt: skip
    remarks = [
        "State evolution follows message passing iteration by iteration from side information; a random start has an "
        "overlap of order 1/D, and the iterations until it has grown depend on the run and on log D.",
        "Iterations of a run are correlated, so that χ² of these curves says less than its number of points.",
        "Algorithm 1 is run as published: W ~ N(0, 1), variances from the data, damping 0.8, 10⁻³ added to them.",
    ]
    return Findings(agreements, claims, remarks)


def _passage(cosines: xr.DataArray, level: float) -> np.ndarray:
    """Return the iteration from which each run stays above a level; nan if it is below at the end."""
    above = cosines.transpose("seed", "iteration").values > level
    last_below = above.shape[1] - np.argmin(above[:, ::-1], axis=1)  # argmin finds the first False from the end
    found = np.where(above.all(axis=1), 0, last_below) + 1.0
    return np.where(above[:, -1], found, np.nan)


def _range(values: np.ndarray) -> str:
    finite, missing = values[np.isfinite(values)], int(np.isnan(values).sum())
    if not len(finite):
        return "more than were done"
    return f"{finite.min():.0f} to {finite.max():.0f}" + (f" ({missing} not yet)" if missing else "")


def descent_findings(runs: Result, algorithm: asx.SGD) -> Findings:
    """Return the findings on Fig. 2 bottom."""
    ds = runs.ds
    first, second = ds["first_passage"].values.reshape(-1, 2).T
    cosine = abs(ds["cosine_trace"])
    batches = ds["step_trace"].isel(seed=0).values.ravel() / algorithm.reuse
    epoch = int(np.ceil(float(ds["alpha"]) * float(ds["dim"]) / algorithm.batch))
    start = cosine.isel(index=1).mean("seed").values.ravel()
    begun = batches[np.argmax(start > 3 / np.sqrt(float(ds["dim"])))]
    known = _known_at(cosine.isel(index=1), batches, first)
    claims = [
        _passage_claim(2, second, RELEASED_PASSAGES[2]),
        _passage_claim(1, first, RELEASED_PASSAGES[1]),
        Claim(
            "SGD starts to learn layer 2 after one epoch", "1", "Section 3.3",
            f"the mean cosine rises above three times that of a random vector after {begun / epoch:.1f} epochs",
            bool(0.3 < begun / epoch < 3),
        ),
        Claim(
            "layer 1 is only reconstructed later, when layer 2 is almost perfectly learned", "yes", "Section 3.3",
            f"the cosine of layer 2 is {known.min():.3f} at least when that of layer 1 exceeds 1/2",
            bool(known.min() > 0.9),
        ),
    ]  # fmt: skip
    if algorithm.epochs >= 1700:
        for row, value in ((1, 0.976), (0, 0.807)):
            last = abs(ds["published_cosine"].isel(index=row))
            # The released runs share one teacher. Its length, 1 with a spread of 1/sqrt(2D), enters their cosine.
            error = np.hypot(last.std("seed", ddof=1) / np.sqrt(last.sizes["seed"]), np.sqrt(0.5 / int(ds["dim"])))
            what = f"cosine of layer {row + 1} at the end, mean over runs"
            claims.append(number_claim(what, value, "released data", float(last.mean()), float(error), rounding=0.0005))
    remarks = [
        "There is no theory of these runs yet. Every run has its own data, teacher and start; the eight released ones "
        "share one teacher and one start.",
        "The printed step lacks the weights that it starts from and takes the weight decay without the learning rate; "
        "this is the step of the released code.",
    ]
    return Findings(claims=claims, remarks=remarks)


def _known_at(cosine: xr.DataArray, batches: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Return a layer's cosine when the other layer is first learned, for the runs in which that happens."""
    traces = cosine.transpose("seed", "iteration", ...).values.reshape(len(passages), len(batches))
    places = np.minimum(np.searchsorted(batches, np.nan_to_num(passages)), len(batches) - 1)
    found = traces[np.arange(len(passages)), places]
    return found[np.isfinite(passages)] if np.isfinite(passages).any() else np.array([np.nan])


def _passage_claim(layer: int, passages: np.ndarray, released: tuple[int, int]) -> Claim:
    """Judge the number of batches until a layer's cosine exceeds 1/2; runs that never do count as latest."""
    middle = float(np.median(np.nan_to_num(passages, nan=np.inf)))
    return Claim(
        f"batches until the cosine of layer {layer} exceeds 1/2", f"{released[0]} to {released[1]}",
        "released data, 8 runs",
        f"{_range(passages)}, median {middle:.0f}", bool(released[0] <= middle <= released[1]),
    )  # fmt: skip


def three_layer_findings(theory: Result, held: Result, limits: Result) -> Findings:
    """Return the findings on Fig. 3 left."""
    first, second, last = map(float, limits.weak_recovery.values)
    errors = limits.weak_recovery_err.values
    words = [format_number(*pair) for pair in zip(limits.weak_recovery.values, errors, strict=True)]
    shared = abs(first - second) <= 3 * float(np.hypot(*errors[:2]))
    between = theory.ds.sel(alpha=slice(first, second))["overlap"]
    rates = "; ".join(
        f"{float(at[0, 0]):.3f} and {float(at[1, 1]):.3f} at alpha = {float(at['alpha']):g}" for at in between
    )
    beyond = theory.ds.sel(alpha=slice(first, None))
    gain = held.ds.sel(alpha=beyond["alpha"], method="nearest")["plugin_error"] - beyond["plugin_error"]
    claims = [
        Claim(
            "the last layer is learned first", "yes", "Section 3.2", f"layer 3 at {words[2]}",
            bool(last + 3 * errors[2] < min(first, second)),
        ),
        Claim(
            "layers 1 and 2 share a threshold", "they seem to; conjectured to be general", "Section 3.2",
            f"layer 1 at {words[0]}, layer 2 at {words[1]}", shared, _script("three_layers"),
        ),
        Claim(
            "layers 1 and 2 are learned at the same rate", "sensibly", "Section 3.2", f"overlaps {rates}",
            bool(abs(between[:, 0, 0] - between[:, 1, 1]).max() < 0.05), _script("three_layers"),
        ),
        Claim(
            "the error falls further than with layers 1 and 2 at zero (dashed)", "yes", "Fig. 3 left",
            f"plug-in error {float(gain.max()):.3f} below, at most", bool((gain > 0).any()),
        ),
    ]  # fmt: skip
    remarks = [
        f"Everything is recovered exactly above alpha = {float(limits.exact_recovery):g}, three indices over the two "
        "independent outputs of a sample.",
        "The published curve of the error is called that of eq. (11); as for two layers it is the plug-in error, which "
        "is drawn beside that of the posterior mean.",
    ]
    return Findings(claims=claims, remarks=remarks)


def held_findings(found: xr.Dataset, free: Result) -> Findings:
    """Return the findings on Fig. 5; ``found`` has the overlap of layer 1 for each overlap held in layer 2."""
    overlap = found["overlap"]
    nothing, most, nearly = (float(overlap.sel(held=at, method="nearest")) for at in (0.0, 0.9, 0.99))
    first, second = (float(free.ds["overlap"].isel(diagonal_of(layer)).isel(alpha=0)) for layer in (1, 2))
    claims = [
        Claim(
            "unless layer 2 is known almost perfectly, layer 1 is not learned", "yes", "Fig. 5, caption",
            f"overlap of layer 1 {most:.3f} with that of layer 2 at 0.9, {nearly:.3f} with 0.99",
            most < 0.01 and nearly > 0.3,
        ),
        Claim(
            "if layer 2 is not learned, neither is layer 1", "yes", "Appendix E.2",
            f"overlap of layer 1 {nothing:.3f}", nothing < 0.01,
        ),
        Claim(
            "left alone, layer 2 is learned almost perfectly and layer 1 well", "yes", "Appendix E.2",
            f"overlaps {second:.4f} and {first:.3f} at alpha = {float(free.ds['alpha'][0]):g}, below exact recovery",
            second > 0.99 and first > 0.8,
        ),
    ]  # fmt: skip
    remarks = [
        "The text has two slips: layer 2 is chosen to be kept, not “not to keep”, and the overlap that depends "
        "strongly on it is that of the first layer, as the caption says.",
        "State evolution of layer 1 alone, layer 2 being held; what was published has no numbers in its text.",
    ]
    return Findings(claims=claims, remarks=remarks)
