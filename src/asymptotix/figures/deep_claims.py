"""Verdicts on the claims of Troiani et al., arXiv:2502.00901, from our numbers for each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..core.compare import Comparison
from ..core.result import Result
from ..core.words import format_number
from .making.claims import PublishedFigure
from .making.record import Claim, Findings, agreement
from .misprints import published_cosine

if TYPE_CHECKING:
    import asymptotix as asx


def diagonal_of(layer: int) -> dict[str, Any]:
    """Return the indices of the diagonal entry of a layer, which is counted from one, for ``isel``."""
    return {"index": layer - 1, "index_other": layer - 1}


def two_layer_findings(
    said: PublishedFigure, comparison: Comparison, held: Result, informed: Result, limits: Result
) -> Findings:
    """Return the findings on Fig. 1 left, from a comparison of state evolution with GAMP.

    Other results: layer 1 ``held`` at zero, start from full knowledge (``informed``), thresholds (``limits``).
    """
    theory, runs = comparison.theory, comparison.experiment
    below_exact = comparison.sel(alpha=slice(None, float(limits.exact_recovery)))  # above it, runs do not scatter
    curves = [(f"overlap of layer {layer}", "overlap", diagonal_of(layer)) for layer in (2, 1)]
    curves += [("plug-in error", "plugin_error", {}), ("error of the posterior mean", "test_error", {})]
    agreements = [agreement(f"{label}, below exact recovery", below_exact, name, **at) for label, name, at in curves]
    second, first = map(float, limits.weak_recovery.values)
    second_error, first_error = map(float, limits.weak_recovery_err.values)
    words = f"layer 2 at {first:.4f}, layer 1 at {second:.4f}"
    claims = [
        said("first-threshold", first, error=first_error),
        said("second-threshold", second, error=second_error),
        said("second-layer-first", [first, second], words, [first_error, second_error]),
        _plateau_claim(said, theory, runs),
        *_error_claims(said, theory, held, first, second),
        _no_gap_claim(said, theory, informed),
        _diagonal_claim(said, runs),
    ]
    flagged = int((~runs.ds["converged"]).sum())
    return Findings(agreements, claims, said.remarks(flagged=flagged, runs=runs.ds["converged"].size))


def _plateau_claim(said: PublishedFigure, theory: Result, runs: Result) -> Claim:
    at = theory.ds.sel(alpha=1.2, method="nearest")
    overlap = float(at["overlap"].isel(diagonal_of(1)))
    measured = runs.ds["overlap"].isel(diagonal_of(1)).isel(dim=-1).sel(alpha=1.2, method="nearest")
    size, seeds = int(runs.ds["dim"][-1]), measured.sizes["seed"]
    least = f"GAMP at D = {size} at least {float(measured.min()):.4f} in {seeds} runs"
    return said("high-plateau", overlap, f"{overlap:.4f} ({at['status'].item()}); {least}", alpha=float(at["alpha"]))


def _error_claims(said: PublishedFigure, theory: Result, held: Result, first: float, second: float) -> list[Claim]:
    ds = theory.ds
    below = ds.sel(alpha=slice(None, first))
    names = ("test_error", "test_error_err", "plugin_error", "plugin_error_err")
    bayes, bayes_error, plugin, plugin_error = (float(below[name].isel(alpha=0)) for name in names)
    spread = float(below["plugin_error"].max() - below["plugin_error"].min())
    fall = float(ds["plugin_error"].sel(alpha=second, method="nearest")) / plugin
    beyond = ds.sel(alpha=slice(second, None))
    gain = held.ds.sel(alpha=beyond["alpha"], method="nearest")["plugin_error"] - beyond["plugin_error"]
    further = f"plug-in error {float(gain.max()):.3f} below that with layer 1 held at zero, at most"
    return [
        said("bayes-error", bayes, error=bayes_error),
        said("plugin-error", plugin, error=plugin_error),
        said("constant-error", spread / plugin, f"it varies by {spread:.1g}"),
        said("sizable-decrease", fall, f"plug-in error falls to {100 * fall:.0f} % of its first value"),
        said("another-decrease", bool((gain >= 0).all() and (gain > 0).any()), further),
    ]


def _no_gap_claim(said: PublishedFigure, theory: Result, informed: Result) -> Claim:
    """Judge the claim that state evolution from full knowledge, ``informed``, ends at the same overlaps."""
    other = theory.ds.sel(alpha=informed.ds["alpha"], method="nearest")
    gap = abs(informed.ds["overlap"].values - other["overlap"].values)
    error = 3 * np.hypot(informed.ds["overlap_err"].values, other["overlap_err"].values) + 1e-9
    at = ", ".join(f"{alpha:g}" for alpha in informed.ds["alpha"].values)
    found = f"overlaps of state evolution from full knowledge differ by at most {gap.max():.1g} at alpha = {at}"
    return said("no-gap", bool((gap <= error).all()), found)


def _diagonal_claim(said: PublishedFigure, runs: Result) -> Claim:
    cross = runs.ds["overlap"].isel(index=0, index_other=1).isel(dim=-1)
    size = int(runs.ds["dim"][-1])
    largest = float(abs(cross.mean("seed")).max())
    return said("diagonal-overlaps", largest * size**0.5, f"means over runs at D = {size} are below {largest:.2g}")


def skip_findings(said: PublishedFigure, limits: Result) -> Findings:
    """Return the findings on Fig. 1 right, from the thresholds ``limits`` by skip and layer."""
    ds, table = limits.ds, said.released["thresholds"]
    claims = []
    for claim, row in (("first-at-skip", 1), ("second-at-skip", 0)):
        for skip, *published in table:
            if np.isclose(ds["skip"], skip).any() and skip in said.released["claimed_skips"]:
                at = ds.sel(skip=skip, method="nearest").isel(index=row)
                found, error = float(at["weak_recovery"]), float(at["weak_recovery_err"])
                claims.append(said(claim, found, error=error, skip=skip, released=published[1 - row]))
    second, first = ds["weak_recovery"].values.T
    spread = f"layer 1 between {second.min():.3f} and {second.max():.3f}, layer 2 between {first.min():.3f} and "
    claims.append(said("three-phases", [first, second], f"{spread}{first.max():.3f}"))
    return Findings(claims=claims, remarks=said.remarks(least=min(skip for skip, low, _ in table if low < 1 / 6)))


def iteration_findings(said: PublishedFigure, cosines: xr.DataArray, comparison: Comparison) -> Findings:
    """Return the findings on Fig. 2 top: ``cosines`` (seed, iteration, layer) of Algorithm 1, comparison of GAMP."""
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
    turns = f"in {int(in_turn.sum())} of {seeds} runs of Algorithm 1: cosine above 1/2 after {_range(second)} "
    starts = f"in Algorithm 1 its cosine stays above 0.2 after {_range(begun)} iterations; from side information it "
    starts += f"exceeds 1/2 after {int(np.argmax(followed > 0.25)) + 1}"
    some = f"in {int(learned.sum())} of {seeds} runs with their own data and starts{others}"
    claims = [
        said("layer-2-before", in_turn.all(), f"{turns}iterations, for layer 1 after {_range(first)}"),
        # The paper shows one run: if some of our runs learn layer 1 and others do not, the claim is not decided.
        said("algorithm-one", True if learned.all() else None if learned.any() else False, some),
        said("ten-steps", np.nan_to_num(begun, nan=np.inf).min(), starts),
        said("layer-2-known", known, f"its cosine is then {known:.3f} at least"),
    ]
    return Findings(agreements, claims, said.remarks())


def _passage(cosines: xr.DataArray, level: float) -> np.ndarray:
    """Return the iteration, from 1, from which each run stays above ``level``; nan if it is below at the end."""
    above = cosines.transpose("seed", "iteration").values > level
    last_below = above.shape[1] - np.argmin(above[:, ::-1], axis=1)  # argmin finds the first False from the end
    found = np.where(above.all(axis=1), 0, last_below) + 1.0
    return np.where(above[:, -1], found, np.nan)


def _range(values: np.ndarray) -> str:
    finite, missing = values[np.isfinite(values)], int(np.isnan(values).sum())
    if not len(finite):
        return "more than were done"
    return f"{finite.min():.0f} to {finite.max():.0f}" + (f" ({missing} not yet)" if missing else "")


def descent_findings(said: PublishedFigure, runs: Result, algorithm: asx.SGD) -> Findings:
    """Return the findings on Fig. 2 bottom, from ``runs`` of gradient descent, ``algorithm``."""
    ds = runs.ds
    first, second = ds["first_passage"].values.reshape(-1, 2).T
    cosine = abs(ds["cosine_trace"])
    batches = ds["step_trace"].isel(seed=0).values.ravel() / algorithm.reuse
    epoch = int(np.ceil(float(ds["alpha"]) * float(ds["dim"]) / algorithm.batch))
    start = cosine.isel(index=1).mean("seed").values.ravel()
    begun = batches[np.argmax(start > 3 / np.sqrt(float(ds["dim"])))] / epoch
    known = _known_at(cosine.isel(index=1), batches, first).min()
    rise = f"the mean cosine rises above three times that of a random vector after {begun:.1f} epochs"
    later = f"the cosine of layer 2 is {known:.3f} at least when that of layer 1 exceeds 1/2"
    claims = [
        said("passage-2", *_median_passage(second)),
        said("passage-1", *_median_passage(first)),
        said("one-epoch", begun, rise),
        said("layer-1-later", known, later),
    ]
    if algorithm.epochs >= 1700:
        for row, claim in ((1, "last-cosine-2"), (0, "last-cosine-1")):
            last = published_cosine(runs).isel(index=row)
            # The released runs share one teacher. Its length, 1 with a spread of 1/sqrt(2D), enters their cosine.
            error = np.hypot(last.std("seed", ddof=1) / np.sqrt(last.sizes["seed"]), np.sqrt(0.5 / int(ds["dim"])))
            claims.append(said(claim, float(last.mean()), error=float(error)))
    return Findings(claims=claims, remarks=said.remarks())


def _known_at(cosine: xr.DataArray, batches: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Return a layer's cosine at the ``passages`` (seed,) of the other layer; runs without passage are left out.

    The result is [nan] if no run has one. ``batches`` are the numbers of batches at the iterations of ``cosine``.
    """
    traces = cosine.transpose("seed", "iteration", ...).values.reshape(len(passages), len(batches))
    places = np.minimum(np.searchsorted(batches, np.nan_to_num(passages)), len(batches) - 1)
    found = traces[np.arange(len(passages)), places]
    return found[np.isfinite(passages)] if np.isfinite(passages).any() else np.array([np.nan])


def _median_passage(passages: np.ndarray) -> tuple[float, str]:
    """Return the median of ``passages``, in batches, and a text on it; nan, a run that never passes, counts as inf."""
    middle = float(np.median(np.nan_to_num(passages, nan=np.inf)))
    return middle, f"{_range(passages)}, median {middle:.0f}"


def three_layer_findings(said: PublishedFigure, theory: Result, held: Result, limits: Result) -> Findings:
    """Return the findings on Fig. 3 left: theory, theory with layers 1 and 2 ``held`` at zero, and thresholds."""
    first, second, last = map(float, limits.weak_recovery.values)
    errors = limits.weak_recovery_err.values
    words = [format_number(*pair) for pair in zip(limits.weak_recovery.values, errors, strict=True)]
    shared = abs(first - second) <= 3 * float(np.hypot(*errors[:2]))
    between = theory.ds.sel(alpha=slice(first, second))["overlap"]
    rates = "; ".join(
        f"{float(at[0, 0]):.3f} and {float(at[1, 1]):.3f} at alpha = {float(at['alpha']):g}" for at in between
    )
    apart = float(abs(between[:, 0, 0] - between[:, 1, 1]).max())
    beyond = theory.ds["plugin_error"].sel(alpha=slice(first, None))
    gain = float((held.ds["plugin_error"].sel(alpha=beyond["alpha"], method="nearest") - beyond).max())
    claims = [
        said("last-layer-first", [last, min(first, second)], f"layer 3 at {words[2]}", [errors[2], 0.0]),
        said("shared-threshold", shared, f"layer 1 at {words[0]}, layer 2 at {words[1]}"),
        said("same-rate", apart, f"overlaps {rates}"),
        said("falls-further", gain, f"plug-in error {gain:.3f} below, at most"),
    ]
    return Findings(claims=claims, remarks=said.remarks(exact=float(limits.exact_recovery)))


def held_findings(said: PublishedFigure, found: xr.Dataset, free: Result) -> Findings:
    """Return the findings on Fig. 5: ``found`` has layer 1's overlap by layer 2's held one, ``free`` holds none."""
    nothing, most, nearly = (float(found["overlap"].sel(held=at, method="nearest")) for at in (0.0, 0.9, 0.99))
    first, second = (float(free.ds["overlap"].isel(diagonal_of(layer)).isel(alpha=0)) for layer in (1, 2))
    known = f"overlap of layer 1 {most:.3f} with that of layer 2 at 0.9, {nearly:.3f} with 0.99"
    alone = f"overlaps {second:.4f} and {first:.3f} at alpha = {float(free.ds['alpha'][0]):g}, below exact recovery"
    claims = [
        said("almost-perfectly", most < 0.01 and nearly > 0.3, known),
        said("neither-layer", nothing, f"overlap of layer 1 {nothing:.3f}"),
        said("left-alone", second > 0.99 and first > 0.8, alone),
    ]
    return Findings(claims=claims, remarks=said.remarks())
