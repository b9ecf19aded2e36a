"""What all tests share: Ctrl-C is obeyed, and programs that JAX compiled for one test serve the next one.

A shell starts jobs in the background with SIGINT ignored, and nohup with SIGHUP; tests of interrupts send both to
themselves.

Compiled programs serve this run and those that follow on this machine. The targets of the Makefile name the folder in
``COMPILED_FOR_TESTS``; without that name none are kept. Processes that tests start compile for themselves, as a user's
do: tests kill some of them, and half an entry would be found, and warned of, ever after.
"""

import os
import signal
import tempfile
import threading
from pathlib import Path

if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def put(self, key: str, value: bytes) -> None:
    """Write an entry whole or not at all: threads and the other worker may look for it at this moment.

    JAX's own writes into the file under its last name, without a lock unless the size of the folder is bounded.
    """
    folder = Path(str(self.path))
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(value)
    os.replace(file.name, folder / f"{key}-cache")


if os.environ.get("COMPILED_FOR_TESTS"):
    import jax
    from jax._src.lru_cache import LRUCache

    LRUCache.put = put
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(os.environ["COMPILED_FOR_TESTS"]))
    # Otherwise what compiled within a second or is small is left out: nearly all that tests compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
