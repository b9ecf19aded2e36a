"""Published claims on one-shot images, compared with our findings.

A claim is decided if a difference exceeds two of its errors, and only for the published network size: the smaller
networks of the quick size have other heads. ``numbers`` is theory at the chosen temperatures, ``narrow``
a small width, U the order parameter (paths, paths); ``words`` fill in the text of a claim.

Tiberi et al., arXiv:2405.15926, section 4.2.1 and appendix H.2; single accuracies are from the authors' released code.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from ...attention_paths.heads import path_heads
from ..making.claims import PublishedFigure, beyond
from ..making.record import Agreement, Claim
from .at_widths import FASHION, OMNIGLOT, Chosen, accuracy, gain, right_in
from .pruned import Pruned, mean_loss

#: A difference counts if it exceeds this number of its errors. Larger: more claims stay undecided.
ERRORS = 2.0


def base_claim(said: PublishedFigure, value: float, error: float) -> Claim:
    below = beyond(said.released["base"] - value, error, errors=ERRORS)
    return said("base-accuracy", not below, f"{value:.1f} ± {error:.1f}")


def gain_claim(said: PublishedFigure, numbers: Chosen, name: str, narrow: float, **words: str) -> Claim:
    """Judge the claim that width ``narrow`` is more accurate than the limit on the data set ``name``."""
    more, error = gain(numbers.right[name].sel(width=narrow), numbers.right[name].sel(width=np.inf))
    own, limit = (accuracy(numbers.right[name].sel(width=width)).value for width in (narrow, np.inf))
    found = f"{float(own):.1f} against {float(limit):.1f}: {more:+.2f} ± {error:.2f}"
    return of_networks(said("narrow-gain", more, found, error, **words), 1)


def comparable_claim(said: PublishedFigure, numbers: Chosen, name: str, narrow: float, **words: str) -> Claim:
    """Judge the claim that width ``narrow`` is at most one percentage point worse than the limit on ``name``."""
    more, error = gain(numbers.right[name].sel(width=narrow), numbers.right[name].sel(width=np.inf))
    return of_networks(said("narrow-comparable", more, f"{more:+.2f} ± {error:.2f} points", error, **words), 1)


def alignment_claim(said: PublishedFigure, numbers: Chosen, narrow: float, leading: int = 10) -> Claim:
    """Judge the claim that learning moves the labels into the kernel's ``leading`` components, in every draw."""
    share = (numbers.alignment.isel(component=slice(leading)) ** 2).sum("component")
    own, limit = share.sel(width=narrow), share.sel(width=np.inf)
    found = f"share of the labels in the first {leading}: {float(own.mean()):.3f} against {float(limit.mean()):.3f}"
    return said("aligned-kernel", float((own - limit).min()), found)


def off_diagonal_claim(said: PublishedFigure, U: np.ndarray, architecture: str) -> Claim:
    """Judge the claim that paths are correlated, by |U_ij| / sqrt(U_ii U_jj) of the most correlated pair."""
    root = np.sqrt(np.diag(U))
    correlation = abs(U) / np.outer(root, root) - np.eye(len(U))
    mean = correlation.sum() / (len(U) ** 2 - len(U))
    found = f"largest correlation of two paths {correlation.max():.2f}, mean {mean:.2f}"
    return said("off-diagonal", correlation.max(), found, architecture=architecture)


def block_claim(said: PublishedFigure, U: np.ndarray, heads: Sequence[int]) -> Claim:
    """Judge the claim that correlations are mostly between paths with the same head in the first layer."""
    first = path_heads(heads)[:, 0]
    off = ~np.eye(len(U), dtype=bool)
    same = (first[:, None] == first) & off
    share, chance = abs(U)[same].sum() / abs(U)[off].sum(), same.sum() / off.sum()
    found = f"{100 * share:.0f} % of the off-diagonal weight, {100 * chance:.0f} % of the pairs"
    return of_networks(said("first-head", share, found), 1)


def likeness_claim(said: PublishedFigure, U: np.ndarray, empirical: np.ndarray, heads: Sequence[int]) -> Claim:
    """Judge the claim that gradient descent has an order parameter, ``empirical``, similar to theory's U.

    Their correlation is compared with those after all renamings of the heads.
    """
    observed, chance = head_permutations(U, empirical, heads)
    share = float((chance >= observed - 1e-12).mean())
    signs = float((np.sign(U) == np.sign(empirical))[~np.eye(len(U), dtype=bool)].mean())
    found = (
        f"correlation of the entries {observed:.2f}, equalled by {100 * share:.1f} % of all renamings of the heads; "
        f"{100 * signs:.0f} % of the off-diagonal signs agree"
    )
    return said("trained-likeness", share <= 0.05 if share <= 0.05 or observed <= 0 else None, found)


def head_permutations(U: np.ndarray, other: np.ndarray, heads: Sequence[int]) -> tuple[float, np.ndarray]:
    """Return the correlation of the entries of two matrices over paths, and those for all renamings of the heads.

    The renamings, at most 50 000, start with the actual names. The diagonal is included: which paths are strong is
    part of the structure.
    """
    rows = path_heads(heads)
    upper = np.triu_indices(len(U))
    renamed = itertools.product(*(itertools.permutations(range(count)) for count in heads))
    found = []
    for names in itertools.islice(renamed, 50_000):
        paths = np.ravel_multi_index([np.array(own)[rows[:, layer]] for layer, own in enumerate(names)], tuple(heads))
        found.append(np.corrcoef(U[upper], other[np.ix_(paths, paths)][upper])[0, 1])
    return float(found[0]), np.array(found)


def temperature_claims(said: PublishedFigure, draws: xr.Dataset, numbers: Chosen) -> list[Claim]:
    """Judge the claims that temperatures of L2H4 grow as widths shrink and that the published ones are the best.

    ``draws`` has theory at all temperatures.
    """
    widths = [float(width) for width in numbers.temperature.width.values if np.isfinite(width)]
    chosen = {width: float(np.exp(np.log(numbers.temperature.sel(width=width)).mean())) for width in widths}
    rank = rank_correlation(np.array(widths), np.array(list(chosen.values())))
    listed = ", ".join(f"{value:.3g} at {width:g}" for width, value in chosen.items())
    claims = [said("temperature-grows", rank, f"geometric means {listed}")]
    lost = {}
    for width, temperature in said.released["temperatures"]:
        if width in widths and temperature in draws.temperature.values:
            at = right_in(draws, OMNIGLOT).sel(width=width, temperature=temperature)
            lost[width] = gain(numbers.right[OMNIGLOT].sel(width=width), at)
    if lost:
        worst = max(lost, key=lambda width: lost[width][0])
        more, error = lost[worst]
        found = f"ours is at most {more:+.2f} ± {error:.2f} points better (width {worst:g})"
        holds = not beyond(more, error, 0.5, ERRORS)
        claims.append(of_networks(said("best-temperatures", holds, found), 1))
    return claims


def score_claim(said: PublishedFigure, networks: Sequence[Pruned], architecture: str) -> Claim:
    """Judge the claim that heads of small score cost little, by the mean rank correlation over networks."""
    own = np.isfinite(networks[0].scores)
    ranks = [rank_correlation(found.scores[own], found.drop[own]) for found in networks]
    spread = 1 / np.sqrt(len(ranks) * (own.sum() - 1))
    each = ", ".join(f"{rank:+.2f}" for rank in ranks)
    words = f"rank correlation of score and loss over {own.sum()} heads {each}; ± {spread:.2f} by chance"
    return said("loss-by-score", float(np.mean(ranks)), words, spread, architecture=architecture)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation; 0 if either array is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.asarray(spearmanr(first, second))[0])


def marginal_claim(said: PublishedFigure, networks: Sequence[Pruned], architecture: str) -> Claim:
    """Judge the claim that a quarter of the heads can be removed at a small loss in distribution."""
    count, heads = networks[0].quarter_count, sum(networks[0].heads)
    lost, error = mean_loss(networks, OMNIGLOT, "score", count)
    words = f"{lost:+.2f} ± {error:.2f}, where up to {said.claims['marginal-loss'].limit:g} counts as marginal"
    claim = said("marginal-loss", lost, words, error, count=count, heads=heads, architecture=architecture)
    return of_networks(claim, len(networks))


def fashion_claim(said: PublishedFigure, networks: Sequence[Pruned], count: int, architecture: str) -> Claim:
    """Judge the claim that removing the ``count`` heads of lowest score improves Fashion-MNIST."""
    lost, error = mean_loss(networks, FASHION, "score", count)
    claim = said("fashion-gains", -lost, f"{-lost:+.2f} ± {error:.2f}", error, count=count, architecture=architecture)
    return of_networks(claim, len(networks))


def same_loss_claim(said: PublishedFigure, smaller: Sequence[Pruned], larger: Sequence[Pruned]) -> Claim:
    """Judge the claim that removing a quarter of the heads costs the larger network as much as the smaller one."""
    (first, first_error), (second, second_error) = (
        mean_loss(networks, OMNIGLOT, "score", networks[0].quarter_count) for networks in (smaller, larger)
    )
    words = f"{first:+.2f} ± {first_error:.2f} and {second:+.2f} ± {second_error:.2f} points"
    error = float(np.hypot(first_error, second_error))
    return of_networks(said("same-loss", abs(first - second), words, error), len(smaller))


def of_networks(claim: Claim, count: int) -> Claim:
    """Return the claim with the number ``count`` of networks in its text; one network cannot refute it (None)."""
    words = f"{claim.found}; {count} networks" if count > 1 else f"{claim.found}; one network"
    return replace(claim, found=words, holds=None if claim.holds is False and count == 1 else claim.holds)


def sampling_agreement(numbers: Chosen, samples: Mapping[int, xr.Dataset], name: str = OMNIGLOT) -> Agreement:
    """Compare accuracies on ``name`` of theory and of exact sampling, ``samples`` by width, for the first draw."""
    z, distances = [], {}
    for width, found in samples.items():
        theory = numbers.right[name].isel(draw=slice(1)).sel(width=width)
        more, error = gain(right_in(found, name).expand_dims("draw"), theory)
        base = float(accuracy(theory).value)
        distances[width] = (more / base, error / base)
        z.append(more / error if error > 0 else 0.0)
    total, largest = float(np.square(z).sum()), float(np.abs(z).max(initial=0.0))
    return Agreement(f"accuracy of exact sampling, {name}", len(z), total, largest, distances)


def sampling_claim(said: PublishedFigure, U: np.ndarray, found: xr.Dataset) -> Claim:
    """Judge the claim that theory's U and that of exact sampling, ``found``, agree already at width 10."""
    exact = found["order_parameter"].values
    distance = np.linalg.norm(U - exact) / np.linalg.norm(exact)
    upper = np.triu_indices(len(U))
    likeness = np.corrcoef(U[upper], exact[upper])[0, 1]
    words = f"correlation of the entries {likeness:.3f}, distance {100 * distance:.0f} % of the norm"
    return said("sampling-agrees", likeness, words)


# ---------------------------------------------------------------------------------------------- remarks


def choice_remark(numbers: Chosen) -> str:
    """Return a remark: how much accuracy choosing the temperature on the test examples would add."""
    more = accuracy(numbers.right_on_test.astype(float) - numbers.right[OMNIGLOT])
    each = [f"{value:+.2f}" for value in more.value]
    widths = [f"{width:g}" for width in numbers.temperature.width.values]
    return (
        f"Choosing the temperature on the test examples, as in print, instead of on validation ones would add "
        f"{float(np.mean(more.value)):+.2f} points on average over widths ({', '.join(each)} at {', '.join(widths)})."
    )


def order_remark(networks: Sequence[Pruned], architecture: str) -> str:
    """Return a remark: the loss without a quarter of the heads by score, against magnitude, chance and search."""
    parts, gone = [], networks[0].quarter_count
    for name in (OMNIGLOT, FASHION):
        orders = networks[0].orders
        lost = {order: "{:+.1f} ± {:.1f}".format(*mean_loss(networks, name, order, gone)) for order in orders}
        chance = np.mean([found.chance_loss(name) for found in networks])
        standing = 100 * np.mean([found.standing(name, "score") for found in networks])
        parts.append(
            f"{name}: {lost['score']} points by score, {lost['magnitude']} by magnitude, {chance:+.1f} at random, "
            f"{lost['search']} by search on validation; {standing:.0f} % of all sets of as many heads cost as much as "
            "the score's or more"
        )
    many = f"{len(networks)} networks" if len(networks) > 1 else "one network"
    return f"{architecture}, {many}, a quarter of the heads gone, loss of accuracy. " + "; ".join(parts) + "."


def rescaling_remark(found: Pruned, architecture: str) -> str:
    curve = found.curves[OMNIGLOT]["score"].sel(removed=found.quarter_count)
    return (
        "The published rescaling of a layer that lost heads multiplies the output by a positive number, so that no "
        f"answer changes; the squared error of {architecture} without a quarter of its heads is "
        f"{float(curve.rescaled_squared_error):.3f} with it and {float(curve.squared_error):.3f} without."
    )


def single_remark(found: Pruned, base: float, published: Mapping[str, Any]) -> str:
    """Return a remark: accuracies without single heads, by rising score, and published ones; ``base`` has all heads."""
    own = [base - found.drop[at] for at in found.orders["score"]]
    words = f"Accuracy without one head, by rising score: {' '.join(f'{value:.1f}' for value in own)} % of {base:.1f} %"
    if not published:
        return words + "."
    return (
        words
        + f"; published {' '.join(map(str, published['after_one']))} % of {published['base']} %, of another network."
    )


def sampling_remark(samples: Mapping[int, xr.Dataset]) -> str:
    each = [
        f"width {width}: R-hat {float(found.r_hat):.3f}, at least {float(found.effective_samples):.0f} effective "
        f"samples, {int(found.divergences)} divergences, {float(found.cpu_seconds) / 60:.0f} CPU minutes"
        for width, found in samples.items()
    ]
    return "Exact sampling, largest R-hat over the entries of U. " + "; ".join(each) + "."


COMMON_REMARKS = (
    "Errors of accuracies are those over the examples asked, as if they were independent, and where the Bayesian "
    "network learned from several draws of examples, over these too.",
    "Where a layer has no head left the output is zero and counts as half right.",
)
