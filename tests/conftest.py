"""What all tests share: Ctrl-C is obeyed, and programs that were compiled for one test serve the next one.

A shell starts jobs in the background with SIGINT ignored, and nohup with SIGHUP; tests of interrupts send both to
themselves.
"""

import importlib
import os
import signal
import sys
import threading
from pathlib import Path

if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

#: What is kept of compiled programs, and for whom: see this file. Processes that tests start import it themselves.
COMPILED = Path(__file__).parent / "compiled_programs"
if str(COMPILED) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(COMPILED), os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, str(COMPILED))
    sys.modules.pop("sitecustomize", None)  # a system's own one
    importlib.import_module("sitecustomize")
