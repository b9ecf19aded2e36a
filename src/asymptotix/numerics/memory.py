"""How much memory there is, asked before anything large is built."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: Bytes that every machine has: below, nothing is asked, for the question loads JAX, which nothing small needs.
ALWAYS_THERE = 2**28
#: Where the kernel keeps control groups, and the file of the limit in each of them: of version 2, which has no names of
#: controllers, and of version 1.
CGROUPS = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
#: Where it says to which groups this process belongs: lines "number:controller,controller:/path".
OWN_CGROUPS = "/proc/self/cgroup"


def physical_memory() -> int | None:
    """Bytes of the device that JAX computes on, or that this process may use of the machine; None if not known."""
    import jax

    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return min(_limits(), default=None)


def refuse_beyond_memory(needed: int, what: str, instead: str) -> None:
    """Raise a MemoryError with the number and what to do where ``needed`` bytes exceed 70 % of the memory."""
    if needed <= ALWAYS_THERE:
        return
    available = physical_memory()
    if available is not None and needed > 0.7 * available:
        raise MemoryError(
            f"{what} takes {_gib(needed)}, and there are {_gib(available)} for this process; try {instead}"
        )


def _limits() -> Iterator[int]:
    """What bounds the memory of this process: the machine, its container, its job, its own limit."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield from _group_limits()
    yield from _job_limits()
    try:
        import resource

        if (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            yield soft
    except ImportError:  # not on Windows
        pass


def _group_limits() -> Iterator[int]:
    """Limits of the control groups that this process is in: its own, and all above it."""
    for controller, (root, file) in CGROUPS.items():
        own = Path(root, _own_group(controller))
        for group in (own, *own.parents):
            if not group.is_relative_to(root):
                break
            try:
                yield int((group / file).read_text())
            except (OSError, ValueError):  # no such group, which a container sees as the root; or "max"
                continue


def _own_group(controller: str) -> str:
    """Path of this process's group below the root of a controller; "" where it is the root or not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(OWN_CGROUPS).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path.lstrip("/")
    return ""


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
