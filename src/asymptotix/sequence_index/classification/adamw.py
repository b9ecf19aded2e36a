"""AdamW as implemented in two libraries, whose defaults differ.

With g the gradient, m and v the running means of g and g^2 (0.9, 0.999), t the number of steps so far and
m^ = m / (1 - 0.9^t), v^ = v / (1 - 0.999^t),

    PyTorch:       w <- w - rate (m^ / (sqrt(v^) + 1e-8) + 0.01 w)
    Transformers:  w <- w - rate m^ / (sqrt(v^) + 1e-6 / sqrt(1 - 0.999^t)).

If gradients are small, as for attention weights, the second version moves less.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

#: Libraries whose AdamW is available.
LIBRARIES = ("transformers", "torch")
_BETA1, _BETA2 = 0.9, 0.999


def adamw(library: str, learning_rate: float) -> Any:
    """Return the optimiser of one of the libraries, as an optimiser of the package optax."""
    try:
        import optax
    except ImportError as error:
        raise ImportError('training needs the package optax: pip install "asymptotix[data]"') from error
    if library == "torch":
        return optax.adamw(learning_rate, b1=_BETA1, b2=_BETA2, eps=1e-8, weight_decay=0.01)

    def epsilon(step: jax.Array) -> jax.Array:
        return 1e-6 / jnp.sqrt(1 - _BETA2 ** (step + 1.0))

    scheduled = optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps_root", "weight_decay", "nesterov"))
    return scheduled(learning_rate, b1=_BETA1, b2=_BETA2, eps=epsilon, weight_decay=0.0)
