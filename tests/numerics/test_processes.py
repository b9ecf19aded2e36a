"""A process that was forked after JAX was used says so; it does not hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asymptotix.numerics import precision

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import os, sys, warnings
from asymptotix.numerics.precision import refuse_after_fork
import jax.numpy as jnp

warnings.simplefilter("ignore")  # JAX warns of the fork itself

def in_child():
    child = os.fork()
    if child == 0:
        try:
            refuse_after_fork()
            os._exit(0)
        except RuntimeError as error:
            os._exit(7 if "forked after JAX was used" in str(error) and "spawn" in str(error) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

before = in_child()
jnp.ones(2).sum()
refuse_after_fork()
print(before, in_child())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_only_a_fork_after_the_first_use_is_refused():
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.split() == ["0", "7"], done.stderr


SOLVING = """
import os, warnings
import asymptotix as asx

warnings.simplefilter("ignore")
problem = asx.BayesOptimal(asx.MultiIndex(lambda z: abs(z[0]), indices=1, noise=0.5))
asx.solve(problem, alpha=0.5, progress=False)
child = os.fork()
if child == 0:
    try:
        asx.solve(problem, alpha=0.7, progress=False)
    except RuntimeError as error:
        os._exit(7 if "forked after JAX was used" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_verb_in_a_forked_process_does_not_hang():
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", SOLVING], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.split() == ["7"], done.stderr


def test_nothing_is_said_where_nothing_was_forked():
    precision.refuse_after_fork()
