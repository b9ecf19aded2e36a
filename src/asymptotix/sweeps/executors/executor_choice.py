"""Choice of the executor of a sweep by its argument ``executor``."""

from __future__ import annotations

from ...numerics import checks
from ...numerics.threads import available_cores
from .on_dask import OnDask, client_of
from .pool import Pool
from .submitting import Executor, InProcess, Submitting


def as_executor(given: object) -> Executor:
    """Return the executor for None, a number of processes, an address of Dask, or an object with ``submit``."""
    if given is None:
        return InProcess()
    if isinstance(given, int) and not isinstance(given, bool):
        return Pool(checks.integer("executor", given, minimum=1))
    if isinstance(given, str):
        return OnDask(client_of(given), own=True)
    if hasattr(given, "scheduler_info") and hasattr(given, "get_executor"):
        return OnDask(given, own=False)
    if callable(submit := getattr(given, "submit", None)):
        return Submitting(submit, int(getattr(given, "_max_workers", 0) or available_cores()))
    raise TypeError(
        "executor must be None (this process), a number of processes, the address of a Dask scheduler, a Dask client "
        f"or an object with submit(function, *arguments), got {checks.named(given)}"
    )
