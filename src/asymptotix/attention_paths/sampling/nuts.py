"""Draws from the exact posterior at finite width: the No-U-Turn sampler on the order parameters or on the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...core.problem import Algorithm, Outcome, Problem
from ...core.progress import Progress
from ...numerics import checks
from ...numerics.memory import refuse_beyond_memory
from ...numerics.threads import one_blas_thread
from ..posterior import PathPosterior

if TYPE_CHECKING:
    from .chains import Chain, Posterior

#: What a chain must reach to count as converged: split R-hat over all chains, effective samples of every entry of U.
LARGEST_R_HAT = 1.01
LEAST_EFFECTIVE_SAMPLES = 100

_Earlier = Mapping[tuple[int, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class NUTS(Algorithm):
    """The No-U-Turn sampler on the posterior of a :class:`PathPosterior`, exact at any width; a seed is a chain.

    Parameters
    ----------
    space : "collapsed" or "weights"
        "collapsed" draws the order parameters U^(1), ..., U^(L+1), all weights integrated out: the prior is a chain of
        Wishart matrices, the likelihood a Gaussian process, and the dimension does not depend on the width. "weights"
        draws the weights themselves, which is slower but for the smallest networks.
    draws : int
        Draws that are kept of each chain.
    warmup : int
        Iterations before the first draw, in which step size and mass matrix are tuned.
    thin : int
        Iterations per draw.
    target_accept : float
        Mean acceptance that the step size is tuned to.

    Notes
    -----
    Reported per chain are ``order_parameter`` (the mean of U), ``order_parameter_err`` (its Monte Carlo standard
    error), ``order_parameter_draws``, ``r_hat`` (largest split R-hat over the entries of U, from all chains of the
    point), ``effective_samples`` (smallest over the entries), ``divergences``, ``step_size``, ``leapfrog_steps`` (mean
    per iteration) and ``cpu_seconds`` (of all threads, without compilation); of weights also ``path_weights_draws``,
    w^pi with f(x) = sum_pi w^pi . xi^pi(x).
    """

    space: str = "collapsed"
    draws: int = 1000
    warmup: int = 500
    thin: int = 1
    target_accept: float = 0.8

    needs_dim: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.one_of("space", self.space, ("collapsed", "weights"))
        object.__setattr__(self, "draws", checks.integer("draws", self.draws, 4))
        object.__setattr__(self, "warmup", checks.integer("warmup", self.warmup, 20))
        object.__setattr__(self, "thin", checks.integer("thin", self.thin, 1))
        target = float(checks.positive("target_accept", self.target_accept))
        if not target < 1:
            raise ValueError(f"target_accept must be in (0, 1), got {target}")
        object.__setattr__(self, "target_accept", target)

    def check(self, problem: Problem) -> None:
        if not isinstance(problem, PathPosterior):
            raise TypeError(f"NUTS runs on PathPosterior(AttentionPaths(...), ...), got {type(problem).__name__}")

    def dimensions(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        own = problem.dimensions()["order_parameter"]
        rows = own[: len(own) // 2]
        return {
            **problem.dimensions(),
            "order_parameter_draws": ("draw", *own),
            "path_weights_draws": ("draw", *rows, "feature"),
            "chain_state": ("state",),
        }

    def run_points(
        self,
        problem: Any,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        return self.resume_points(problem, points, dim=dim, seeds=seeds, earlier={}, progress=progress)

    def resume_points(
        self,
        problem: Any,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        earlier: _Earlier,
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """As :meth:`run_points`; runs named in ``earlier`` go on where they stopped, and end in the same draws.

        Parameters
        ----------
        earlier
            (position in ``points``, position in ``seeds``) -> the values of the interrupted outcome.
        """
        all_widths = [_whole_widths(problem, float(point["width"])) for point in points]
        self._refuse_beyond_memory(problem, len(points) * len(seeds))
        for position, widths in enumerate(all_widths):
            progress.message(f"width = {points[position]['width']:g}")
            chains = self._chains(problem, widths, seeds)
            spent = [0.0] * len(chains)
            for k, chain in enumerate(chains):
                if (position, k) in earlier:
                    spent[k] = _take_up(chain, earlier[position, k])
            interrupt = None
            began = time.process_time()
            try:
                _run(chains, progress)
            except KeyboardInterrupt as error:
                interrupt = error
            _share(time.process_time() - began, chains, spent)
            outcomes = _outcomes(problem, chains, spent, interrupt is not None)
            yield from ((position, k, outcome) for k, outcome in enumerate(outcomes))
            if interrupt is not None:
                raise interrupt

    def _refuse_beyond_memory(self, problem: Any, runs: int) -> None:
        size, features = problem.network.paths * problem.outputs, problem.attended.shape[-1]
        numbers = self.draws * size * (size + (features if self.space == "weights" else 0))
        # The draws of a chain, and a copy in passing.
        refuse_beyond_memory(
            16 * numbers * runs, f"{runs} runs of {self.draws} draws of {size} x {size} numbers", "fewer draws or seeds"
        )

    def _chains(self, problem: Any, widths: tuple[int, ...], seeds: Sequence[int]) -> list[Chain]:
        from .chains import Chain, Settings

        posterior, data = _posterior(self.space, problem, widths)
        settings = Settings(self.warmup, self.thin, self.draws, self.target_accept)
        return [Chain(posterior, data, settings, (seed, *widths)) for seed in seeds]


def _posterior(space: str, problem: Any, widths: tuple[int, ...]) -> tuple[Posterior, Any]:
    """What is sampled, and its data."""
    heads, xi, outputs = problem.network.heads, problem.attended, problem.outputs
    given = xi, problem.labels, problem.temperature, problem.prior_variances
    # Imported here, because both load JAX.
    if space == "weights":
        from .weight_space import WeightPosterior, weight_data

        return WeightPosterior(heads, widths, xi.shape[-1], outputs), weight_data(*given)
    from .collapsed import CollapsedPosterior, collapsed_data
    from .hierarchy import Hierarchy

    hierarchy = Hierarchy(heads, widths, outputs)
    return CollapsedPosterior(hierarchy), collapsed_data(hierarchy, *given)


def _whole_widths(problem: Any, width: float) -> tuple[int, ...]:
    """N_1..N_L, N_a as integers, or an error."""
    if not np.isfinite(width):
        raise ValueError(
            f"width must be finite to be sampled, got {width}; solve(..., width=inf) is the Gaussian-process limit"
        )
    widths = problem.widths(width)
    whole = tuple(round(N) for N in widths)
    if min(whole) < 1 or not np.allclose(whole, widths, rtol=1e-9, atol=0):
        raise ValueError(f"width must make all widths N_l whole numbers to be sampled, got {width}: N_l = {widths}")
    return whole


def _run(chains: Sequence[Chain], progress: Progress) -> None:
    """Bring all chains to their end, in threads: JAX computes without holding the interpreter.

    The chains work in threads even where there is one, so that Ctrl-C reaches the waiting thread only and finds every
    chain between two blocks.
    """
    total = sum(chain.goal for chain in chains)
    pool = ThreadPoolExecutor(max(1, min(len(chains), os.cpu_count() or 1)))
    try:
        with one_blas_thread(), Progress(total, "iterations", enabled=progress.enabled) as bar:
            bar.advance(sum(chain.iterations for chain in chains))
            running: dict[Future[int], Chain] = {pool.submit(c.advance): c for c in chains if not c.finished}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    chain = running.pop(future)
                    bar.advance(future.result(), f"energy {chain.energy:.4g}")
                    if not chain.finished:
                        running[pool.submit(chain.advance)] = chain
    finally:
        _settle(pool)


def _settle(pool: ThreadPoolExecutor) -> None:
    """Wait until no chain is inside a block, however often Ctrl-C is pressed: its draws and its state must agree."""
    interrupt = None
    while True:
        try:
            pool.shutdown(cancel_futures=True)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _take_up(chain: Chain, before: Mapping[str, np.ndarray]) -> float:
    """Set a chain to where its predecessor stopped; return the CPU seconds that it had used."""
    if "chain_state" not in before:
        return 0.0
    draws = {name: before.get(f"{name}_draws", empty) for name, empty in chain.draws().items()}
    shaped = {name: np.reshape(rows, (len(rows), *chain.draws()[name].shape[1:])) for name, rows in draws.items()}
    steps = float(before.get("leapfrog_steps", np.nan))
    chain.restore(before["chain_state"], shaped, int(before["divergences"]), steps)
    return float(before["cpu_seconds"])


def _share(seconds: float, chains: Sequence[Chain], spent: list[float]) -> None:
    """Add to every chain its share of the CPU seconds, by leapfrog steps: threads of JAX belong to no chain."""
    total = sum(chain.steps_now for chain in chains)
    for k, chain in enumerate(chains):
        spent[k] += seconds * chain.steps_now / max(total, 1)


def _outcomes(problem: Any, chains: Sequence[Chain], spent: Sequence[float], interrupted: bool) -> list[Outcome]:
    draws = [chain.draws() for chain in chains]
    U = [found["order_parameter"] for found in draws]
    r_hat = _largest_r_hat(U)
    found = []
    for chain, own, seconds in zip(chains, draws, spent, strict=True):
        values = _values(problem, own)
        values["r_hat"] = r_hat
        values["divergences"] = chain.divergences
        values["step_size"] = chain.step_size
        values["leapfrog_steps"] = chain.leapfrog_steps
        values["cpu_seconds"] = seconds
        if interrupted:  # of a chain that is finished too: it will be compared with the others
            values["chain_state"] = chain.packed()
        if chain.finished:
            status = _status(r_hat, float(values["effective_samples"]), chain)
        else:
            status = f"interrupted after {len(own['order_parameter'])} of {chain.settings.draws} draws"
        found.append(Outcome(values, status, status == "converged"))
    return found


def _values(problem: Any, draws: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Mean, its standard error and the draws, in the shape of the problem's own order parameter."""
    outputs = problem.outputs if "output" in problem.dimensions()["order_parameter"] else None
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
    """Rows over (path, output) as two dimensions where the labels have an output dimension."""
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
    """Split R-hat over what all chains have."""
    from numpyro.diagnostics import split_gelman_rubin

    common = min(len(draws) for draws in U)
    if common < 4:
        return float("nan")
    return float(np.max(split_gelman_rubin(np.stack([draws[:common] for draws in U]))))


def _status(r_hat: float, effective: float, chain: Chain) -> str:
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
    return "; ".join(problems) or "converged"
