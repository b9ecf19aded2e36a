"""Trial of a link when a model is made: links that JAX cannot trace, or a theory cannot use, raise a clear error.

JAX itself accepts many such links silently: an index beyond the end of an array becomes the last index, and a number
that changes from call to call is frozen at its first value by compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.memory import refuse_beyond_memory
from ...numerics.precision import double_precision
from ...numerics.programs.snapshot import Snapshot
from .. import streams

#: Number of standard normal index matrices at which a link is evaluated; as many are uniform in [-4, 4].
_DRAWS, _FARTHEST = 32, 4.0
#: Number of samples whose index covariances must fit into memory at once, as every computation needs.
_SAMPLES = 2**13
#: Links that passed the trial, with the shape of their index matrices. A trial takes 0.2 seconds, and a sweep over the
#: noise makes a thousand models of one link.
_passed: set[tuple[Snapshot, int, int]] = set()
_MOST_PASSED = 64


def try_link(link: Snapshot, indices: int, tokens: int, shape: tuple[int, ...]) -> None:
    """Raise a ValueError if a link is unusable, which names link and reason; MemoryError if it is too large.

    Parameters
    ----------
    link : Snapshot
        Snapshot of the user's function.
    shape : tuple of int
        Shape of the array that the link takes: (P, M) or (P,).
    """
    if (known := (link, indices, tokens)) in _passed:
        return

    def flat(z: jax.Array, function: Callable[..., Any] = link) -> jax.Array:
        return jnp.ravel(jnp.asarray(function(z)))

    def flat_anew(z: jax.Array) -> jax.Array:
        return flat(z, link.function)

    def refused(found: str) -> ValueError:
        return ValueError(f"link must return finite real numbers that depend on its argument; got {link!r}, {found}")

    with double_precision():
        try:
            outputs = jax.eval_shape(flat, jax.ShapeDtypeStruct(shape, jnp.float64)).shape[0]
            refuse_large(indices, tokens, outputs)
            beyond = _index_out_of_range(link, shape)
            if beyond:
                raise ValueError(f"link must read the array of shape {shape} that it gets; got {link!r}: {beyond}")
            Z = _places(shape)
            y, again = (np.asarray(jax.vmap(f)(jnp.asarray(Z))) for f in (flat, flat_anew))
        except (MemoryError, ValueError) as error:
            if isinstance(error, MemoryError) or str(error).startswith("link must"):
                raise
            raise _untraceable(link, shape, error) from error
        except Exception as error:
            raise _untraceable(link, shape, error) from error
    if outputs == 0:
        raise ValueError(f"link must return at least one number, got {link!r}, which returns none")
    finite = np.isfinite(y).all(1) & (not np.iscomplexobj(y))
    if not finite.all():
        at = int(np.argmin(finite))
        raise refused(f"which returns {y[at][:4]} at {np.round(Z[at].ravel()[:4], 3)}")
    if not np.array_equal(y, again):
        raise refused("which returns other numbers when it is called again")
    if (y == y[0]).all():
        raise refused(f"which returns {y[0][:4]} at {len(y)} random places")
    _refuse_without_derivative(link, flat, Z[0])
    if len(_passed) >= _MOST_PASSED:
        _passed.clear()
    _passed.add(known)


def refuse_large(indices: int, tokens: int, outputs: int) -> None:
    """Raise MemoryError if index covariances or outputs of a few thousand samples do not fit into memory."""
    n = indices * tokens
    needed = 8 * _SAMPLES * (2 * n**2 + outputs)
    what = f"a link of {indices} x {tokens} indices and {outputs} outputs, for {_SAMPLES} samples at a time,"
    refuse_beyond_memory(needed, what, "fewer indices, tokens or outputs")


def check_kind(link: object) -> None:
    """Raise a TypeError if the link is not a function, or not hashable, as caches need it."""
    if isinstance(link, type):
        raise TypeError(f"link must be a function of the indices, got the class {link.__name__}; give an instance")
    if not callable(link):
        raise TypeError(f"link must be a function of the indices, got {link!r}")
    try:
        hash(link)
    except TypeError as error:
        raise TypeError(
            f"link must be hashable, got {link!r}, whose class defines __eq__ without __hash__; define both, or give a"
            " function that calls it"
        ) from error


def _refuse_without_derivative(link: Snapshot, flat: Callable[[jax.Array], jax.Array], place: np.ndarray) -> None:
    """Raise a ValueError if JAX cannot differentiate a link in forward mode, as all channels do.

    ``flat`` is the link with its outputs as a vector, ``place`` the index array of the trial.
    """
    with double_precision():
        z = jnp.asarray(place)
        try:
            jax.jvp(flat, (z,), (z,))  # evaluated at numbers; JAX traces the link anyway
        except Exception as error:
            reason = str(error).strip().split("\n")[0].rstrip(".")
            remedy = "write it without jax.custom_vjp, or with jax.custom_jvp" if "custom_vjp" in reason else reason
            raise ValueError(
                f"link must have a forward-mode derivative in JAX; got {link!r}, which has none: {remedy}"
            ) from error


def _places(shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(streams.LINK_TRIAL)
    near = generator.standard_normal((_DRAWS, *shape))
    return np.concatenate([near, generator.uniform(-_FARTHEST, _FARTHEST, near.shape)])


def _index_out_of_range(link: Snapshot, shape: tuple[int, ...]) -> str:
    """Return JAX's message on indices that it would clamp silently; empty if there are none."""
    from jax.experimental import checkify

    try:
        error, _ = checkify.checkify(lambda z: link.function(z), errors=checkify.index_checks)(jnp.ones(shape))
    except Exception:  # links that cannot be traced are reported elsewhere
        return ""
    return (error.get() or "").strip().rstrip(".")


def _untraceable(link: Snapshot, shape: tuple[int, ...], error: Exception) -> ValueError:
    return ValueError(
        f"link must be a function that JAX can trace, of an array of shape {shape}, returning a number or an "
        f"array; got {link!r}, which raised {type(error).__name__}: {_remedy(error) or error}"
    )


def _remedy(error: Exception) -> str:
    """Return what to write instead of Python's, NumPy's or math's functions of numbers; empty for other errors."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "Python's if, and, or, not, min and max need a number, but JAX traces the link with symbols: use "
            "jnp.where(cond, a, b) instead of if, jnp.logical_and instead of and, jnp.minimum instead of min"
        )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "NumPy needs numbers, but JAX traces the link with symbols: use jnp.sign instead of np.sign, for example"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return (
            "float(), int(), range() and the functions of math need a number, but JAX traces the link with symbols: "
            "use jnp.sin instead of math.sin, for example"
        )
    return ""
