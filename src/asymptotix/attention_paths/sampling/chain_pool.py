"""Runs of all Markov chains of a point, in threads; an interrupt stops each chain between two blocks of iterations."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ...core.progress import Progress
from ...numerics import interrupts
from ...numerics.precision import carried
from ...numerics.threads import one_blas_thread
from .chain_record import ChainRecord
from .chains import Chain


def run_chains(chains: Sequence[ChainRecord], progress: Progress) -> KeyboardInterrupt | None:
    """Run all chains to their end; return the interrupt that stopped them, for the caller to raise, or None.

    The CPU seconds are shared among the chains by leapfrog steps, because JAX's threads belong to no chain.
    """
    began, interrupt = time.process_time(), None
    try:
        _run(chains, progress)
    except KeyboardInterrupt as error:
        interrupt = error
    seconds, total = time.process_time() - began, sum(chain.steps_now for chain in chains)
    for chain in chains:
        chain.seconds += seconds * chain.steps_now / max(total, 1)
    return interrupt


def _run(chains: Sequence[ChainRecord], progress: Progress) -> None:
    """Advance all chains block by block, in threads: JAX computes without holding the interpreter lock.

    Even a single chain works in a thread, so that an interrupt reaches only the waiting thread and leaves every chain
    between two blocks. No chain begins another block while a signal to stop is pending.
    """
    total, advance = sum(chain.goal for chain in chains), carried(_advance)
    pool = ThreadPoolExecutor(max(1, min(len(chains), os.cpu_count() or 1)))
    try:
        with one_blas_thread(), Progress(total, "iterations", enabled=progress.enabled) as bar:
            bar.advance(sum(chain.iterations for chain in chains))
            left = [chain for chain in chains if isinstance(chain, Chain) and not chain.finished]
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
