import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from asymptotix.numerics.precision import double_precision


def dtype_now() -> str:
    return jnp.asarray(1.5).dtype.name


@pytest.fixture(autouse=True)
def single_precision_outside():
    assert dtype_now() == "float32", "a test before this one changed JAX's global precision"
    yield
    assert dtype_now() == "float32", "double precision leaked out of its scope"


def test_context_manager_is_float64_inside_only():
    with double_precision():
        assert dtype_now() == "float64"


def test_scopes_nest_and_end_one_by_one():
    with double_precision():
        with double_precision():
            assert dtype_now() == "float64"
        assert dtype_now() == "float64"


def test_one_object_may_be_entered_twice():
    scope = double_precision()
    with scope, scope:
        assert dtype_now() == "float64"


def test_scope_ends_when_the_block_raises():
    with pytest.raises(RuntimeError, match="inside"), double_precision():
        raise RuntimeError("inside")


def test_decorator_keeps_name_arguments_and_value():
    @double_precision()
    def half(x, *, shift=0.0):
        return x / 2 + shift, dtype_now()

    assert half(3.0, shift=1.0) == (2.5, "float64")
    assert half.__name__ == "half"


def test_compiled_function_is_traced_anew_for_each_precision():
    @jax.jit
    def third(x):
        return x / 3

    assert third(jnp.asarray(1.0)).dtype == "float32"
    with double_precision():
        value = float(third(jnp.asarray(1.0)))
    assert value == 1 / 3  # exact: the same IEEE double division


def test_generator_is_float64_in_its_steps_and_its_caller_is_not():
    @double_precision()
    def count():
        for _ in range(3):
            yield dtype_now()

    seen = []
    for inside in count():
        seen.append((inside, dtype_now()))
    assert seen == [("float64", "float32")] * 3


def test_generator_receives_what_is_sent_and_thrown_and_returns_its_value():
    closed = []

    @double_precision()
    def echo():
        try:
            received = yield "first"
            try:
                yield received
            except KeyError:
                yield f"caught in {dtype_now()}"
            return "returned"
        finally:
            closed.append(dtype_now())

    steps = echo()
    assert next(steps) == "first"
    assert steps.send("sent") == "sent"
    assert steps.throw(KeyError("k")) == "caught in float64"
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert stop.value.value == "returned"

    abandoned = echo()
    next(abandoned)
    abandoned.close()
    assert closed == ["float64", "float64"]


def test_other_threads_keep_their_precision():
    seen = []
    with double_precision():
        thread = threading.Thread(target=lambda: seen.append(dtype_now()))
        thread.start()
        thread.join()
    assert seen == ["float32"]


def test_importing_the_package_leaves_the_global_flag_alone():
    program = "import asymptotix, asymptotix.numerics.precision, jax; print(jax.config.jax_enable_x64)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "False\n"
