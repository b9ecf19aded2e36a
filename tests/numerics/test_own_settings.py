"""What a user has set for programs of his own changes nothing in ours: numbers, errors, random draws."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asymptotix.numerics.precision import carried, double_precision, own_settings, single_precision

#: What a user may set, each in a process of its own: JAX reads some of it once.
SETTINGS = {
    "rank promotion": 'jax.config.update("jax_numpy_rank_promotion", "raise")',
    "type promotion": 'jax.config.update("jax_numpy_dtype_promotion", "strict")',
    "threefry": 'jax.config.update("jax_threefry_partitionable", False)',
    "random numbers": 'jax.config.update("jax_default_prng_impl", "rbg")',
    "nan": 'jax.config.update("jax_debug_nans", True)',
    "infinities": 'jax.config.update("jax_debug_infs", True)',
    "64 bits": 'jax.config.update("jax_enable_x64", True)',
    "matrix products": 'jax.config.update("jax_default_matmul_precision", "bfloat16")',
    "numpy": 'np.seterr(all="raise")',
    "third of four devices": (
        'jax.config.update("jax_num_cpu_devices", 4); jax.config.update("jax_default_device", jax.devices()[2])'
    ),
    "threads": 'import os; os.environ["OMP_NUM_THREADS"] = "3"',
}

#: Several of them in one process, by what they concern.
TOGETHER = {
    "how JAX computes": ("rank promotion", "type promotion", "threefry", "random numbers", "matrix products"),
    "what is refused": ("nan", "infinities", "64 bits", "numpy"),
    "where it is computed": ("third of four devices", "threads"),
}

TESTS = Path(__file__).parents[1]

#: A theory of every kind, an experiment of every kind, and what can be asked of a result: small, many in one process.
WORK = """
import json, sys, warnings
import jax, numpy as np
exec(sys.argv[1])
sys.path.append(sys.argv[2])
import conftest  # what one of these processes compiles serves the others
import jax.numpy as jnp
import asymptotix as asx
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
tokens, labels = rng.normal(size=(12, 3, 4)), np.where(rng.normal(size=12) > 0, 1.0, -1.0)
network = asx.AttentionPaths(query_key=(rng.normal(size=(2, 4, 4)),), readout=0)
paths = asx.PathPosterior(network, tokens, labels, temperature=0.3)
retrieval = lambda noise: asx.BayesOptimal(asx.MultiIndex(lambda z: z[0] ** 2, 1, noise))
two_layers = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2), side_information=0.05)
training = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
posterior = asx.solve(paths, width=[6.0, np.inf], progress=False)
found = {
    "link": asx.solve(retrieval(0.0), alpha=0.9, progress=False).overlap,
    "noisy link": asx.solve(retrieval(0.1), alpha=0.9, progress=False).free_entropy,
    "threshold": asx.thresholds(retrieval(0.1), which="weak_recovery", progress=False).weak_recovery,
    "two layers": asx.solve(two_layers, alpha=0.3, tolerance=2e-2, progress=False).overlap,
    "training": asx.solve(training, alpha=1.0, progress=False).test_error,
    "derivative": asx.gradient(training, "test_error", "weight_decay", alpha=1.0).derivative,
    "paths": posterior.order_parameter,
    "prediction": posterior.predict(tokens)[1],
    "accuracy": posterior.evaluate(tokens, labels).accuracy,
    "GAMP": asx.simulate(retrieval(0.1), asx.GAMP(iterations=5), alpha=1.0, dim=40, seeds=1, progress=False).overlap,
    "Adam": asx.simulate(training, asx.Adam(steps=20), alpha=0.5, dim=12, seeds=1, progress=False).test_error,
    "NUTS": asx.simulate(paths, asx.NUTS(draws=5, warmup=20), width=6.0, seeds=1, progress=False).order_parameter,
    "trained": asx.train(
        asx.AttentionPaths(layers=1, heads=2), (tokens, labels), width=4, key_size=2, batch=4, steps=6, progress=False
    ).predict(tokens),
}
print(json.dumps({name: np.asarray(values).ravel().tolist() for name, values in found.items()}))
"""


def computed(setting: str) -> dict[str, list[float]]:
    command = [sys.executable, "-c", WORK, setting, str(TESTS)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    return computed("")


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER)
def test_settings_of_the_user_change_no_digit(names, expected):
    assert computed("; ".join(SETTINGS[name] for name in TOGETHER[names])) == expected


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_user_changes_no_digit(setting, expected):
    assert computed(SETTINGS[setting]) == expected


THEORIES = """
import json
import jax.numpy as jnp
import numpy as np
import asymptotix as asx
training = asx.RiskMinimization(asx.AttentionIndex(noise=0.5), weight_decay=0.1)
square = asx.BayesOptimal(asx.MultiIndex(lambda z: z[0] ** 2, 1, 0.1))
tokens = np.random.default_rng(0).normal(size=(6, 3, 4))
network = asx.AttentionPaths(query_key=(np.ones((2, 4, 4)),), readout=0)
paths = asx.PathPosterior(network, tokens, np.sign(tokens[:, 0, 0]), temperature=0.3)
WORKS = [
    lambda: asx.solve(training, alpha=[0.5, 1.0], progress=False).test_error,
    lambda: asx.solve(square, alpha=0.9, progress=False).overlap,
    lambda: asx.solve(paths, width=5.0, progress=False).order_parameter,
    lambda: asx.simulate(square, asx.GAMP(iterations=3), alpha=1.0, dim=30, seeds=1, progress=False).overlap,
]
def computed(work):
    return np.asarray(work()).ravel().tolist()
"""


@pytest.mark.slow
def test_works_in_several_threads_at_once_give_the_numbers_of_one_after_the_other():
    names: dict[str, Any] = {}
    exec(THEORIES, names)
    works, computed = names["WORKS"], names["computed"]
    alone = [computed(work) for work in works]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(computed, 2 * works)) == 2 * alone


@pytest.mark.slow
def test_kernels_that_numba_does_not_compile_give_the_same_numbers():
    """Loops in Python: only training, whose spectra take few of them, ends within seconds."""
    names: dict[str, Any] = {}
    exec(THEORIES, names)
    command = [sys.executable, "-c", f"{THEORIES}\nprint(json.dumps(computed(WORKS[0])))"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr[-2000:]
    # Compiled kernels may fuse a multiplication and an addition, which rounds differently.
    np.testing.assert_allclose(json.loads(finished.stdout), names["computed"](names["WORKS"][0]), rtol=1e-12)


def rank_and_type() -> tuple[object, ...]:
    import jax

    names = ("numpy_rank_promotion", "numpy_dtype_promotion", "threefry_partitionable", "default_prng_impl")
    return (*(getattr(jax.config, f"jax_{name}") for name in names), np.geterr()["under"])


OURS = ("allow", "standard", True, "threefry2x32", "ignore")
THEIRS = ("raise", "strict", False, "rbg", "raise")


@pytest.fixture
def theirs():
    import jax

    names = ("numpy_rank_promotion", "numpy_dtype_promotion", "threefry_partitionable", "default_prng_impl")
    before = {name: getattr(jax.config, f"jax_{name}") for name in names}
    errors = np.seterr(all="raise")
    for name, value in zip(names, THEIRS, strict=False):
        jax.config.update(f"jax_{name}", value)
    yield
    np.seterr(**errors)
    for name, value in before.items():
        jax.config.update(f"jax_{name}", value)


@pytest.mark.parametrize("scope", [own_settings, double_precision, single_precision])
def test_settings_are_ours_inside_and_theirs_outside(theirs, scope):
    assert rank_and_type() == THEIRS
    with scope(), own_settings():
        assert rank_and_type() == OURS
    with pytest.raises(LookupError), scope():
        raise LookupError
    assert rank_and_type() == THEIRS


def test_a_generator_has_our_settings_and_its_caller_has_not(theirs):
    @double_precision()
    def steps():
        for _ in range(2):
            yield rank_and_type()

    assert [(inside, rank_and_type()) for inside in steps()] == [(OURS, THEIRS)] * 2


def test_what_is_set_inside_a_scope_stays_in_scopes_within(theirs):
    with double_precision(), np.errstate(over="raise"), double_precision(), pytest.raises(FloatingPointError):
        np.exp(np.array([1000.0]))


def test_settings_are_carried_to_another_thread(theirs):
    seen = []

    def look():
        import jax.numpy as jnp

        seen.append((rank_and_type(), jnp.asarray(1.5).dtype.name))

    with double_precision():
        works = [carried(look), look]
    for work in [*works, carried(look)]:  # outside of our scope nothing is carried
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [settings for settings, _ in seen] == [OURS, (*THEIRS[:-1], seen[1][0][-1]), (*THEIRS[:-1], seen[1][0][-1])]
    assert seen[0][1] == "float64"
