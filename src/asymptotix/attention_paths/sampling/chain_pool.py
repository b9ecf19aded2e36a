"""Runs of all chains of a point, in threads and with progress; an interrupt stops each chain between two blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from ...core.progress import Progress
from ...numerics import interrupts
from ...numerics.precision import carried
from ...numerics.threads import one_blas_thread
from .finished_chain import FinishedChain

if TYPE_CHECKING:
    from .chains import Chain


class ChainPool:
    """Chains of one point, and the CPU seconds that each has used.

    Parameters
    ----------
    chains
        One chain per seed.
    earlier
        For chains to resume: position among the chains -> values of the chain's earlier outcome.

    Attributes
    ----------
    seconds : list of float
        CPU seconds of every chain, summed over all threads, without compilation.
    """

    def __init__(
        self, chains: Sequence[Chain | FinishedChain], earlier: Mapping[int, Mapping[str, np.ndarray]]
    ) -> None:
        self.chains = chains
        self.seconds = [_take_up(chain, earlier[k]) if k in earlier else 0.0 for k, chain in enumerate(chains)]

    def run(self, progress: Progress) -> KeyboardInterrupt | None:
        """Run all chains to their end; return an interrupt that stopped them, for the caller to raise."""
        began, interrupt = time.process_time(), None
        try:
            _run(self.chains, progress)
        except KeyboardInterrupt as error:
            interrupt = error
        self._share(time.process_time() - began)
        return interrupt

    def _share(self, seconds: float) -> None:
        """Share the CPU seconds among the chains by leapfrog steps, because JAX's threads belong to no chain."""
        total = sum(chain.steps_now for chain in self.chains)
        for k, chain in enumerate(self.chains):
            self.seconds[k] += seconds * chain.steps_now / max(total, 1)


def _run(chains: Sequence[Chain | FinishedChain], progress: Progress) -> None:
    """Advance all chains block by block, in threads: JAX computes without holding the interpreter lock.

    Even a single chain works in a thread, so that an interrupt reaches only the waiting thread and leaves every chain
    between two blocks. No chain begins another block while a signal to stop is pending.
    """
    total, advance = sum(chain.goal for chain in chains), carried(_advance)
    pool = ThreadPoolExecutor(max(1, min(len(chains), os.cpu_count() or 1)))
    try:
        with one_blas_thread(), Progress(total, "iterations", enabled=progress.enabled) as bar:
            bar.advance(sum(chain.iterations for chain in chains))
            left = [chain for chain in chains if not isinstance(chain, FinishedChain) and not chain.finished]
            running: dict[Future[int], Chain] = {pool.submit(advance, chain): chain for chain in left}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    chain = running.pop(future)
                    bar.advance(future.result(), f"energy {chain.energy:.4g}")
                    if not chain.finished:
                        running[pool.submit(advance, chain)] = chain
    finally:
        _settle(pool)


def _advance(chain: Chain) -> int:
    """Advance by one block, or not at all if a signal to stop is pending; return the number of iterations."""
    return 0 if interrupts.waiting() else chain.advance()


def _settle(pool: ThreadPoolExecutor) -> None:
    """Wait until no chain is inside a block, however often Ctrl-C is pressed: draws and state of a chain must agree."""
    interrupt = None
    while True:
        try:
            pool.shutdown(cancel_futures=True)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _take_up(chain: Chain | FinishedChain, before: Mapping[str, np.ndarray]) -> float:
    """Restore a chain where its earlier run stopped; return the CPU seconds that the earlier run used."""
    if isinstance(chain, FinishedChain):
        return chain.cpu_seconds
    if "chain_state" not in before:
        return 0.0
    draws = {name: before.get(f"{name}_draws", empty) for name, empty in chain.draws().items()}
    shaped = {name: np.reshape(rows, (len(rows), *chain.draws()[name].shape[1:])) for name, rows in draws.items()}
    steps = float(before.get("leapfrog_steps", np.nan))
    chain.restore(before["chain_state"], shaped, int(before["divergences"]), steps)
    return float(before["cpu_seconds"])
