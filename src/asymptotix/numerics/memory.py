"""How much memory there is, asked before anything large is built."""

from __future__ import annotations

import os


def physical_memory() -> int | None:
    """Bytes of memory of the device that JAX computes on, or of this machine; None where neither is known."""
    import jax

    stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def refuse_beyond_memory(needed: int, what: str, instead: str) -> None:
    """Raise a MemoryError with the number and what to do where ``needed`` bytes exceed 70 % of the memory."""
    available = physical_memory()
    if available is not None and needed > 0.7 * available:
        raise MemoryError(
            f"{what} takes {needed / 2**30:.1f} GiB, and this machine has {available / 2**30:.1f} GiB; try {instead}"
        )
