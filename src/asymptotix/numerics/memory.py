"""How much memory there is, asked before anything large is built."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: Where the kernel keeps the limit of a container: control groups of version 2 and 1.
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def physical_memory() -> int | None:
    """Bytes of the device that JAX computes on, or that this process may use of the machine; None if not known."""
    import jax

    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return min(_limits(), default=None)


def refuse_beyond_memory(needed: int, what: str, instead: str) -> None:
    """Raise a MemoryError with the number and what to do where ``needed`` bytes exceed 70 % of the memory."""
    available = physical_memory()
    if available is not None and needed > 0.7 * available:
        raise MemoryError(
            f"{what} takes {_gib(needed)}, and there are {_gib(available)} for this process; try {instead}"
        )


def _limits() -> Iterator[int]:
    """What bounds the memory of this process: the machine, its container, its job, its own limit."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in CGROUP_FILES:
        try:
            yield int(Path(file).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
    yield from _job_limits()
    try:
        import resource

        if (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            yield soft
    except ImportError:  # not on Windows
        pass


def _job_limits() -> Iterator[int]:
    """Memory of a SLURM job, which is given in MiB for the node or for each of its cores."""
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    for name, count in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", cores)):
        try:
            limit = int(os.environ.get(name, "0")) * int(count) * 2**20
        except ValueError:
            continue
        if limit > 0:  # 0 stands for all of the node
            yield limit


def _gib(count: int) -> str:
    """Bytes for people, also where they exceed what a float can hold."""
    return f"{count / 2**30:.1f} GiB" if count < 2**100 else "far more than any machine has"
