"""Programs that JAX and numba compiled for one process of the tests serve the others, and those of later runs.

Python imports this file at its start wherever its folder is on PYTHONPATH: in all processes that tests start. The
folder of the programs is named by ``COMPILED_FOR_TESTS``; without that name each process compiles for itself.
"""

import hashlib
import importlib.machinery
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "asymptotix"


def kernels() -> str:
    """Return a name for the kernels of numba, which does not see when a constant of another file changes."""
    texts = [path.read_bytes() for path in sorted(SOURCE.rglob("*.py"))]
    return hashlib.sha256(b"".join(text for text in texts if b"numba" in text)).hexdigest()[:16]


def written_whole(lru_cache: ModuleType) -> None:
    """Let JAX write an entry whole or not at all: other processes look for it, and some are killed by their test.

    JAX writes into the file under its last name, without a lock unless the size of the folder is bounded.
    """

    def put(self: Any, key: str, value: bytes) -> None:
        folder = Path(str(self.path))
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(value)
        os.replace(file.name, folder / f"{key}-cache")

    lru_cache.LRUCache.put = put  # pyright: ignore[reportAttributeAccessIssue]


def wherever_the_clone_is(caching: ModuleType) -> None:
    """Let numba find what it compiled for a file in another clone."""

    def place(_: Any, file: str) -> str:
        path = Path(file).resolve().parent
        inside = path.is_relative_to(SOURCE.resolve())
        return path.relative_to(SOURCE.resolve()).as_posix().replace("/", "_") if inside else path.as_posix()[1:]

    caching._CacheLocator.get_suitable_cache_subpath = classmethod(place)


CHANGES = {"jax._src.lru_cache": written_whole, "numba.core.caching": wherever_the_clone_is}


class Patched:
    """Finds modules to change when they are imported, and not before: many processes need neither of them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        change = CHANGES.pop(name, None)
        found = None if change is None else importlib.machinery.PathFinder.find_spec(name, path)
        if change is None or found is None or found.loader is None:
            return None
        executed = found.loader.exec_module

        def execute(module: ModuleType) -> None:
            executed(module)
            change(module)

        found.loader.exec_module = execute
        return found


if os.environ.get("COMPILED_FOR_TESTS") and SOURCE.is_dir():
    folder = os.path.abspath(os.environ["COMPILED_FOR_TESTS"])
    os.environ["COMPILED_FOR_TESTS"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    # Otherwise what compiled within a second or is small is left out: nearly all that tests compile.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    if "NUMBA_CACHE_DIR" not in os.environ:
        os.environ["NUMBA_CACHE_DIR"] = os.path.join(folder, f"numba-{kernels()}")
    sys.meta_path.insert(0, Patched())  # pyright: ignore[reportArgumentType]
