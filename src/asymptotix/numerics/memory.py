"""The available memory, which is checked before large arrays are built."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

#: Number of bytes that every machine has. Smaller needs are not checked, because the check loads JAX, which is slow.
ALWAYS_THERE = 2**28
#: Controller -> folder of the kernel's control groups, and name of the file with the limit of a group in bytes: for
#: version 2, which has no names of controllers, and for version 1.
CGROUPS = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}
#: File with the groups of this process, in lines "number:controller,controller:/path".
OWN_CGROUPS = "/proc/self/cgroup"


def physical_memory() -> int | None:
    """Return the memory in bytes of JAX's accelerator or, on a CPU, the limit of this process; None if unknown."""
    import jax

    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return min(_limits(), default=None)


def refuse_beyond_memory(needed: int, what: str, instead: str) -> None:
    """Raise MemoryError if ``needed`` bytes for ``what`` exceed 70 % of the memory; the text advises ``instead``."""
    if needed <= ALWAYS_THERE:
        return
    available = physical_memory()
    if available is not None and needed > 0.7 * available:
        raise MemoryError(
            f"{what} takes {_gib(needed)}, and there are {_gib(available)} for this process; try {instead}"
        )


def _limits() -> Iterator[int]:
    """Yield the limits in bytes on the memory of this process: of the machine, container, SLURM job and process."""
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
    """Yield the memory limits in bytes of the control group of this process, and of all groups above it."""
    for controller, (root, file) in CGROUPS.items():
        own = Path(root, _own_group(controller))
        for group in (own, *own.parents):
            if not group.is_relative_to(root):
                break
            try:
                yield int((group / file).read_text())
            except (OSError, ValueError):  # no such file, as in a container, whose own group is the root; or "max"
                continue


def _own_group(controller: str) -> str:
    """Return the path of this process's group below the folder of ``controller``; "" for the folder or if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(OWN_CGROUPS).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path.lstrip("/")
    return ""


def _job_limits() -> Iterator[int]:
    """Yield the memory limit in bytes of this SLURM job, whose variables give MiB per node or per core."""
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "1")
    for name, count in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", cores)):
        try:
            limit = int(os.environ.get(name, "0")) * int(count) * 2**20
        except ValueError:
            continue
        if limit > 0:  # 0 stands for the whole memory of the node
            yield limit


def _gib(count: int) -> str:
    """Return a number of bytes as text in GiB; a phrase from 2^100 on, because it may exceed the range of a float."""
    return f"{count / 2**30:.1f} GiB" if count < 2**100 else "far more than any machine has"
