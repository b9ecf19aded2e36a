"""Draws from the exact posterior at finite width: the No-U-Turn sampler on the order parameters or on the weights.

The weights' posterior is Tiberi et al., arXiv:2405.15926, eq. (8), sampled there by the same method (appendix F). The
posterior of the order parameters, with all weights integrated out at any width, is ours.

Equation ap-wishart of docs/theory/attention_paths.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...core.problem import Algorithm, Outcome, Problem
from ...core.progress import Progress
from ...core.runs import point_runs
from ...numerics import checks, interrupts
from ...numerics.memory import refuse_beyond_memory
from ..posterior import PathPosterior
from ..streams import chain_entropy
from ..theory.likelihood import stored_bytes
from .chain_record import ChainRecord, ChainSettings, earlier_chain
from .chain_report import chain_outcomes

if TYPE_CHECKING:
    from .collapsed import CollapsedData, CollapsedPosterior
    from .hierarchy import Hierarchy
    from .weight_space import WeightData, WeightPosterior

_Earlier = Mapping[tuple[int, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class NUTS(Algorithm):
    """The No-U-Turn sampler on the posterior of a :class:`PathPosterior`, exact at any width; each seed is one chain.

    Parameters
    ----------
    space : "collapsed" or "weights"
        "collapsed" draws the order parameters U^(1), ..., U^(L+1), with all weights integrated out: the prior is a
        chain of Wishart matrices, the likelihood a Gaussian process, and the dimension does not depend on the width.
        "weights" draws the weights themselves, which is slower except for the smallest networks.
    draws : int
        Number of draws kept from each chain.
    warmup : int
        Number of iterations before the first draw, in which step size and mass matrix are tuned.
    thin : int
        Number of iterations per draw.
    target_accept : float
        Mean acceptance probability that the step size is tuned to.

    Notes
    -----
    Reported per chain are ``order_parameter`` (the mean of U), ``order_parameter_err`` (its Monte Carlo standard
    error), ``order_parameter_draws``, ``r_hat`` (largest split R-hat over the entries of U, from all chains of the
    point), ``effective_samples`` (smallest over the entries), ``divergences``, ``step_size``, ``leapfrog_steps`` (mean
    per iteration) and ``cpu_seconds`` (of all threads, without compilation). ``space="weights"`` also reports
    ``path_weights_draws``, w^pi with f(x) = sum_pi w^pi . xi^pi(x).

    Examples
    --------
    >>> import asymptotix as asx
    >>> data = asx.tasks.hidden_markov(examples=8, seed=0)
    >>> problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.1)
    >>> asx.NUTS(draws=2000).check(problem)                              # raises where it does not fit
    >>> runs = asx.simulate(problem, asx.NUTS(), width=10, seeds=4)      # doctest: +SKIP
    >>> runs.order_parameter_draws.dims                                  # doctest: +SKIP
    ('seed', 'draw', 'path', 'path_other')
    """

    space: str = "collapsed"
    draws: int = 1000
    warmup: int = 500
    thin: int = 1
    target_accept: float = 0.8

    needs_dim: ClassVar[bool] = False
    runs_together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.one_of("space", self.space, ("collapsed", "weights"))
        object.__setattr__(self, "draws", checks.integer("draws", self.draws, 4))
        object.__setattr__(self, "warmup", checks.integer("warmup", self.warmup, 20))
        object.__setattr__(self, "thin", checks.integer("thin", self.thin, 1))
        object.__setattr__(self, "target_accept", checks.share("target_accept", self.target_accept))

    def check(self, problem: Problem) -> None:
        _path_posterior(problem)

    def check_points(
        self, problem: Problem, points: Sequence[Mapping[str, float]], *, dim: int | None, seeds: Sequence[int]
    ) -> None:
        """Refuse widths that are not whole numbers, and chains whose draws and states do not fit into memory."""
        posterior, count = _path_posterior(problem), len(points) * len(seeds)
        size, features = posterior.network.paths * posterior.outputs, posterior.attended.shape[-1]
        numbers = self.draws * size * (size + (features if self.space == "weights" else 0))
        # Bytes of the draws and of a temporary copy.
        what = f"{count} runs of {self.draws} draws of {size} x {size} numbers"
        refuse_beyond_memory(16 * numbers * count, what, "fewer draws or seeds")
        examples, paths = posterior.attended.shape[:2]
        # All chains share one table on the device, made from a second one on the host.
        table = 2 * stored_bytes(examples, paths, features, posterior.outputs)
        for runs in point_runs(points, seeds, control="width"):
            coordinates = _coordinates(self.space, posterior, _whole_widths(posterior, runs.value)).size
            # Per chain: both ends of a trajectory with momenta and gradients, the positions of a block, the kernel.
            one = 300 * coordinates + 6 * posterior.labels.size**2
            what = f"{len(seeds)} chains of {coordinates} coordinates ({runs.label})"
            refuse_beyond_memory(table + 8 * one * len(seeds), what, "a smaller width or space='collapsed'")

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
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        return self.resume_points(problem, points, dim=dim, seeds=seeds, earlier={}, progress=progress)

    def resume_points(
        self,
        problem: Problem,
        points: Sequence[Mapping[str, float]],
        *,
        dim: int | None,
        seeds: Sequence[int],
        earlier: _Earlier,
        progress: Progress,
    ) -> Iterator[tuple[int, int, Outcome]]:
        """Run the points like :meth:`run_points`, but resume the runs in ``earlier``.

        A resumed run has the same draws as an uninterrupted one. Runs that have all their draws are not run again, but
        reported again, because diagnostics such as R-hat come from all chains of a point.

        Parameters
        ----------
        earlier
            (position in ``points``, position in ``seeds``) -> values of the earlier outcome, observable -> array.
        """
        from .chain_pool import run_chains

        posterior = _path_posterior(problem)
        outputs = posterior.outputs if posterior.labels.ndim == 2 else None
        for runs in point_runs(points, seeds, control="width"):
            progress.message(runs.label)
            widths = _whole_widths(posterior, runs.value)
            before = {k: values for (position, k), values in earlier.items() if position == runs.position}
            chains = self._chains(posterior, widths, seeds, before)
            interrupt = run_chains(chains, progress)
            found = chain_outcomes(chains, outputs=outputs)
            yield from ((runs.position, k, outcome) for k, outcome in enumerate(found))
            if interrupt is not None:
                raise interrupt

    def _chains(
        self,
        problem: PathPosterior,
        widths: tuple[int, ...],
        seeds: Sequence[int],
        before: Mapping[int, Mapping[str, np.ndarray]],
    ) -> list[ChainRecord]:
        """Return one chain per seed, new or from ``before``: position in ``seeds`` -> values of an earlier outcome."""
        from .chains import Chain, placed

        sampled, data = _sampled(self.space, problem, widths)
        data = placed(data)
        settings = ChainSettings(self.warmup, self.thin, self.draws, self.target_accept)
        chains: list[ChainRecord] = []
        for k, seed in enumerate(seeds):
            interrupts.check()
            earlier = earlier_chain(before.get(k, {}), settings)
            if earlier is not None and earlier.finished:
                chains.append(earlier)
                continue
            chains.append(chain := Chain(sampled, data, settings, chain_entropy(seed, widths)))
            if earlier is not None:
                chain.restore(earlier)
        return chains


def _path_posterior(problem: Problem) -> PathPosterior:
    if not isinstance(problem, PathPosterior):
        raise TypeError(f"NUTS runs on PathPosterior(AttentionPaths(...), ...), got {type(problem).__name__}")
    return problem


def _coordinates(space: str, problem: PathPosterior, widths: tuple[int, ...]) -> WeightPosterior | Hierarchy:
    """Return the definition of a chain's coordinates, weights or order parameters; imported late, as both load JAX."""
    heads, outputs = problem.network.heads, problem.outputs
    if space == "weights":
        from .weight_space import WeightPosterior

        return WeightPosterior(heads, widths, problem.attended.shape[-1], outputs)
    from .hierarchy import Hierarchy

    return Hierarchy(heads, widths, outputs)


def _sampled(
    space: str, problem: PathPosterior, widths: tuple[int, ...]
) -> tuple[WeightPosterior, WeightData] | tuple[CollapsedPosterior, CollapsedData]:
    """Return the posterior to sample in ``space`` ("collapsed" or "weights"), and its data."""
    from .collapsed import CollapsedPosterior, collapsed_data
    from .weight_space import WeightPosterior, weight_data

    given = problem.attended, problem.labels, problem.temperature, problem.prior_variances
    found = _coordinates(space, problem, widths)
    if isinstance(found, WeightPosterior):
        return found, weight_data(*given)
    return CollapsedPosterior(found), collapsed_data(found, *given)


def _whole_widths(problem: PathPosterior, width: float) -> tuple[int, ...]:
    """Return N_1..N_L, N_a at this width as integers, or raise ValueError if they are not whole numbers."""
    if not np.isfinite(width):
        raise ValueError(
            f"width must be finite to be sampled, got {width}; solve(..., width=inf) is the Gaussian-process limit"
        )
    widths = problem.widths(width)
    whole = tuple(round(N) for N in widths)
    if min(whole) < 1 or not np.allclose(whole, widths, rtol=1e-9, atol=0):
        raise ValueError(f"width must make all widths N_l whole numbers to be sampled, got {width}: N_l = {widths}")
    return whole
