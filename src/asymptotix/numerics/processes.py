"""Processes that were forked after JAX was used: its threads are not in the child, which would wait for them."""

from __future__ import annotations

import os
import sys

_forked = False  # whether an ancestor of this process had used JAX when it forked


def refuse_after_fork() -> None:
    """Raise a RuntimeError with what to do instead, in a process that was forked after JAX was used."""
    if _forked:
        raise RuntimeError(
            "this process was forked after JAX was used, and JAX would hang in it: start workers with "
            "multiprocessing.get_context('spawn'), or fork them before the first call"
        )


def _look_back() -> None:
    global _forked
    _forked = _forked or _jax_runs()


def _jax_runs() -> bool:
    """Whether JAX has started its threads. It is loaded by others too, and being loaded alone does no harm."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None:
        return False
    # Not public: where it has gone, what is loaded counts as used.
    return getattr(bridge, "backends_are_initialized", lambda: True)()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_back)
