"""Programs of functions that call LAPACK: they end, and are right."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asymptotix.numerics.precision import double_precision
from asymptotix.numerics.programs.compiled import compiled, one_by_one


def of_matrices(z):
    A = z.reshape(3, 3)
    B = A @ A.T + jnp.eye(3)
    solved = jnp.linalg.solve(A + 5 * jnp.eye(3), z[:3]).sum() + jax.nn.relu(jnp.linalg.qr(A)[1][0, 1])
    sizes = jnp.linalg.svd(A, compute_uv=False)[0] + jnp.linalg.cholesky(B)[2, 0]
    return jnp.stack([solved, sizes, jnp.linalg.eigvalsh(B).max(), jnp.linalg.slogdet(B)[1]])


def of_other_kinds(z):
    """Also those with vectors beside matrices."""
    A = z.reshape(3, 3)
    below, diagonal, above = A + 5 * jnp.eye(3)
    banded = jax.lax.linalg.tridiagonal_solve(below, diagonal, above, A)
    schur = jax.scipy.linalg.schur(A)[0]
    return jnp.stack([banded.sum(), (schur**2).sum(), abs(jnp.linalg.eig(A)[0]).max()])


def of_a_product_with_q(z):
    A = z.reshape(3, 3)
    return abs(jax.scipy.linalg.qr_multiply(A, A)[0]).sum()


def in_a_loop(z):
    return jax.lax.while_loop(lambda z: of_matrices(z)[2] > 3, lambda z: 0.9 * z, z)


def in_branches(z):
    return jax.lax.cond(z[0] > 0, lambda z: of_matrices(z)[0], lambda z: of_matrices(2 * z)[1], z)


def around_it(z):
    return jax.vmap(of_matrices)(z + jnp.arange(3.0)[:, None])


def kept(z):
    return jax.grad(lambda z: jax.checkpoint(of_matrices)(z)[2])(z)


def along_it(z):
    return jax.lax.scan(lambda z, _: (z + 0.1 * jax.jacfwd(of_matrices)(z)[2], None), z, None, length=2)[0]


OLD = pytest.mark.skipif(not hasattr(jax.scipy.linalg, "qr_multiply"), reason="this version of JAX has no such product")


@pytest.mark.parametrize(
    "function",
    [
        of_matrices, of_other_kinds, pytest.param(of_a_product_with_q, marks=OLD), in_a_loop, in_branches, around_it,
        kept, along_it,
    ],
)  # fmt: skip
@double_precision()
def test_matrices_are_taken_one_by_one(function):
    z = np.random.default_rng(0).standard_normal((4, 9))
    program = jax.vmap(function)
    found = compiled(program)(z)
    np.testing.assert_allclose(found, jax.jit(program)(z), rtol=1e-10, atol=1e-10)
    assert _batched_calls(jax.jit(program).lower(z).as_text())
    assert not _batched_calls(jax.jit(one_by_one(program)).lower(z).as_text())


def _batched_calls(text: str) -> list[str]:
    """Calls of LAPACK on arrays of more than two axes."""
    calls = re.findall(r"custom_call @lapack_\w+\([^\n]*: \(([^)]*)\)", text)
    return [given for given in calls if re.search(r"tensor<(\d+x){3}", given)]


def test_other_functions_are_compiled_as_they_are(monkeypatch):
    monkeypatch.setattr("asymptotix.numerics.programs.compiled.one_by_one", None)
    double = compiled(lambda x: 2 * x)
    assert float(double(jnp.ones(()))) == 2
    assert float(jax.jit(lambda x: double(x) + 1)(jnp.ones(()))) == 3


def test_as_a_part_of_another_program_it_has_derivatives():
    root = compiled(lambda x: jnp.linalg.cholesky(x * jnp.eye(2))[0, 0])
    assert float(jax.grad(root)(jnp.asarray(4.0))) == pytest.approx(0.25)


def test_fourier_transforms_go_without_the_pool(monkeypatch):
    options, jit = [], jax.jit
    monkeypatch.setattr(jax, "jit", lambda f, **given: options.append(given) or jit(f, **given))
    x = np.random.default_rng(0).standard_normal((64, 256))
    found = compiled(jax.vmap(lambda x: jnp.abs(jnp.fft.fft(x))))(x)
    np.testing.assert_allclose(found, np.abs(np.fft.fft(x)), rtol=1e-3, atol=1e-3)  # single precision
    assert options == [{}, {"compiler_options": {"xla_cpu_multi_thread_eigen": False}}]


_IN_LOOPS = """
import sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from asymptotix.numerics.programs.compiled import compiled

def solved(A, b):
    return jnp.linalg.solve(A, b), jnp.linalg.slogdet(A)[1], jnp.linalg.eigvalsh(A @ A.T), jnp.linalg.eigvalsh(A + A.T)

program = {"compiled": compiled, "jit": jax.jit}[sys.argv[1]](jax.vmap(solved))
rng = np.random.default_rng(0)
A, b = rng.standard_normal((4096, 5, 5)), rng.standard_normal((4096, 5, 3))

def loop():
    end = time.monotonic() + 4
    while time.monotonic() < end:
        found = jax.block_until_ready([program(A, b) for _ in range(3)])

threads = [threading.Thread(target=loop, daemon=True) for _ in range(2)]
for one in threads: one.start()
for one in threads: one.join(60)
print(any(one.is_alive() for one in threads))
"""


@pytest.mark.slow
def test_programs_in_threads_do_not_wait_for_one_another():
    """With `jit` in place of `compiled` the same program hangs, on two cores within seconds."""
    made = subprocess.run([sys.executable, "-c", _IN_LOOPS, "compiled"], capture_output=True, text=True, timeout=120)
    assert (made.returncode, made.stdout) == (0, "False\n"), made.stderr
