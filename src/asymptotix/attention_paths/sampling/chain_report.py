"""Report on chains: means with their Monte Carlo errors, diagnostics of mixing, and a status for each chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.problem import Outcome
from ...core.status import Status
from .chain_record import ChainRecord

#: Limits for a converged chain: largest split R-hat over all chains, least effective samples of any entry of U.
#: Stricter limits need longer chains; looser ones accept chains that have not mixed.
LARGEST_R_HAT = 1.01
LEAST_EFFECTIVE_SAMPLES = 100

ReportValues = dict[str, np.ndarray | float | int]


def chain_outcomes(chains: Sequence[ChainRecord], *, outputs: int | None) -> list[Outcome]:
    """Return the outcome of every chain of a point.

    Parameters
    ----------
    chains
        One chain per seed.
    outputs
        C if the labels have an axis for outputs, else None.
    """
    draws = [chain.draws() for chain in chains]
    r_hat = _largest_r_hat([found["order_parameter"] for found in draws])
    found = []
    for chain, own in zip(chains, draws, strict=True):
        values = _summary(own, outputs)
        values["r_hat"] = r_hat
        values |= {"divergences": chain.divergences, "step_size": chain.step_size}
        values |= {"leapfrog_steps": chain.leapfrog_steps, "cpu_seconds": chain.seconds}
        if chain.finished:
            doubts = _doubts(r_hat, float(values["effective_samples"]), chain)
            found.append(Outcome(values, Status.WEAK_SAMPLE if doubts else Status.CONVERGED, words="; ".join(doubts)))
        else:
            values["chain_state"] = chain.packed()  # to resume from
            words = f"interrupted after {len(own['order_parameter'])} of {chain.settings.draws} draws"
            found.append(Outcome(values, Status.INTERRUPTED, words=words))
    return found


def _summary(draws: Mapping[str, np.ndarray], outputs: int | None) -> ReportValues:
    """Return mean, standard error and draws of U, shaped as in the problem, and the least effective samples.

    ``draws`` is observable -> (draw, ...), with paths and outputs on one axis.
    """
    own = {f"{name}_draws": _with_outputs(name, rows, outputs) for name, rows in draws.items()}
    U = own["order_parameter_draws"]
    effective = _effective_samples(U)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = U.mean(axis=0) if len(U) else np.full(U.shape[1:], np.nan)
        error = U.std(axis=0) / np.sqrt(effective) if len(U) else np.full(U.shape[1:], np.nan)
    return {
        "order_parameter": mean,
        "order_parameter_err": error,
        "effective_samples": float(effective.min()),
        **own,
    }


def _with_outputs(name: str, rows: np.ndarray, outputs: int | None) -> np.ndarray:
    """Return draws ``rows`` with each axis over (path, output) split into two; unchanged if ``outputs`` is None."""
    if outputs is None:
        return rows
    if name == "order_parameter":
        paths = rows.shape[-1] // outputs
        return rows.reshape(len(rows), paths, outputs, paths, outputs)
    return rows.reshape(len(rows), -1, outputs, rows.shape[-1])


def _effective_samples(U: np.ndarray) -> np.ndarray:
    from numpyro.diagnostics import effective_sample_size

    if len(U) < 4:
        return np.full(U.shape[1:], np.nan)
    return np.asarray(effective_sample_size(U[None]))


def _largest_r_hat(U: Sequence[np.ndarray]) -> float:
    """Return the largest split R-hat over the entries of U; all chains' draws (draw, m, m) are cut to the shortest."""
    from numpyro.diagnostics import split_gelman_rubin

    common = min(len(draws) for draws in U)
    if common < 4:
        return float("nan")
    return float(np.max(split_gelman_rubin(np.stack([draws[:common] for draws in U]))))


def _doubts(r_hat: float, effective: float, chain: ChainRecord) -> list[str]:
    problems = []
    if chain.divergences:
        problems.append(
            f"{chain.divergences} divergent transitions of {chain.sampled}: draws may miss a narrow region, raise "
            "target_accept"
        )
    if not r_hat <= LARGEST_R_HAT:
        problems.append(f"R-hat {r_hat:.4g} is above {LARGEST_R_HAT}: the chains have not mixed, raise warmup or draws")
    if not effective >= LEAST_EFFECTIVE_SAMPLES:
        problems.append(f"effective sample size {effective:.0f} is below {LEAST_EFFECTIVE_SAMPLES}: raise draws")
    return problems
