"""Provenance of a result: versions, device, commit, date. Never a host name, a user name or a path."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("asymptotix", "jax", "jaxlib", "numpy", "scipy", "xarray")


def provenance(wall_seconds: float) -> dict[str, Any]:
    """Return versions, platform, device kind, date (UTC), commit and wall time as a dictionary that JSON can hold."""
    return {
        **{package: _version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device_kind(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "wall_seconds": round(wall_seconds, 3),
    }


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _device_kind() -> str:
    jax = sys.modules.get("jax")  # a theory that never imported JAX ran on the CPU
    return jax.devices()[0].device_kind if jax is not None else "cpu"


@functools.cache
def _commit() -> str | None:
    """Return the git commit of the checkout that runs, marked if it has changes; None for an installed package."""
    package = Path(__file__).resolve().parents[2]
    try:
        # A package installed inside the checkout of another project must not report that project's commit.
        if Path(_git(package, "rev-parse", "--show-toplevel")).resolve() != package.parents[1]:
            return None
        commit = _git(package, "rev-parse", "HEAD")
        return commit + "+changes" if _git(package, "status", "--porcelain", "-uno") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
