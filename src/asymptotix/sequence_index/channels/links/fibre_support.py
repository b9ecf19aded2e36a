"""Draws on the fibre of an observation that serve all priors, see :mod:`supported`.

Free coordinates come from a mixture that does not know the prior: standard normals, and normals of many widths around
the true indices, in all rows or in one of them. Whatever overlap is reached, some of its components are close to the
posterior; the balance heuristic over charts and components gives every root the weight

    1/w = sum_c m_c |J_c| q(x_{F_c}),

with m_c draws of the free coordinates F_c from the mixture q in chart c, which solves one coordinate along its line:
for one output, where all roots can be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from ..tools.line_roots import line_roots
from ..tools.random_lists import kronecker_normals

#: Independent lists: what each leaves out tells the bias of all.
LISTS = 4
#: Widths of the components around the true indices: of all rows, and of one row with the others free.
_WIDTHS, _ROW_WIDTHS = (0.6, 0.3, 0.15, 0.07, 0.03, 0.012), (0.5, 0.2, 0.07)
#: Weight of the prior in the mixture, in units of the other components.
_PRIOR = 4
_LOG_2PI = float(np.log(2 * np.pi))
#: Roots along a line, and extrema that may hide two more.
_MOST_ROOTS = (4, 1)
#: Steps towards a root, and the relative residual of what is one.
_STEPS, _CLOSE = 10, 1e-4


class WidthMixture(NamedTuple):
    """Normals with means and widths (G, D), each of equal weight."""

    mean: Any
    width: Any

    def log_density(self, x: Any, free: Any) -> Any:
        """Of the free coordinates of a point x (D,); ``free`` is a mask (D,)."""
        away = (x - self.mean) / self.width
        terms = -0.5 * (away**2 + _LOG_2PI) - jnp.log(self.width)
        return logsumexp(jnp.where(free, terms, 0.0).sum(1)) - np.log(len(self.mean))


def mixture(truth: Any, rows: np.ndarray, noises: int) -> WidthMixture:
    """Around the true coordinates (D,); ``rows`` says which index row each belongs to, the noise is the rest."""
    size = len(rows)
    # The more rows, the more components there are of single ones, and the fewer points would be near in all of them.
    share = max(1, rows.max())
    narrow = [np.ones(size, bool)] * len(_WIDTHS) * share
    widths = [*_WIDTHS] * share
    if rows.max() > 0:
        for row in range(rows.max() + 1):
            chosen = [rows == row] if rows.max() == 1 else [rows == row, rows != row]
            narrow += [mask for mask in chosen for _ in _ROW_WIDTHS]
            widths += [*_ROW_WIDTHS] * len(chosen)
    wide = [np.zeros(size, bool)] * _PRIOR
    narrow, widths = np.array(narrow + wide), np.array(widths + [1.0] * _PRIOR)
    pad = np.zeros((len(narrow), noises))
    width = np.concatenate([np.where(narrow, widths[:, None], 1.0), pad + 1.0], 1)
    return WidthMixture(jnp.where(np.concatenate([narrow, pad > 0], 1), truth, 0.0), jnp.asarray(width))


def fibre_points(
    phi: Any, y: Any, truth: Any, key: Any, mixed: WidthMixture, draws: int, affine: Sequence[bool]
) -> tuple[Any, Any]:
    """Points (m, D) with phi(x) = y and their log-weights (m,), from so many draws in all charts together.

    None has a weight where a line has more roots than there is room for: the others would be weighted wrongly.
    ``affine`` says of every coordinate whether phi is affine in it.
    """
    each = max(1, draws // len(truth))
    charts = [
        _on_chart(phi, y, truth, one, mixed, S, each, affine[S])
        for S, one in enumerate(jax.random.split(key, len(truth)))
    ]
    xs, founds, complete = zip(*charts, strict=True)
    x, found = jnp.concatenate(xs), jnp.concatenate(founds) & jnp.stack(complete).all()
    J = jax.vmap(jax.jacfwd(phi))(x)
    log_balance = jax.vmap(partial(_log_balance, mixed))(J, x)
    good = found & jnp.isfinite(log_balance)
    return x, jnp.where(good, -log_balance - np.log(each), -jnp.inf)


def _on_chart(
    phi: Any, y: Any, truth: Any, key: Any, mixed: WidthMixture, S: int, each: int, affine: bool
) -> tuple[Any, Any, Any]:
    """Roots in coordinate S at random values of the others: places (m, D), which of them exist, whether that is all."""
    D = len(truth)
    F = np.delete(np.arange(D), S)
    first, second = jax.random.split(key)
    normals = kronecker_normals(first, each, D - 1)
    component = (jnp.arange(each) + jax.random.randint(second, (), 0, len(mixed.mean))) % len(mixed.mean)
    free = mixed.mean[component][:, F] + mixed.width[component][:, F] * normals
    base = jnp.zeros((each, D)).at[:, F].set(free)
    x, found, complete = jax.vmap(partial(_along_line, phi, y, S, _line(truth[S]), affine))(base)
    x, found = x.reshape(-1, D), found.reshape(-1)
    room = min(len(found), 4 * each)
    # Most places hold no root: those that do go first.
    _, kept = jax.lax.top_k(found.astype(jnp.float32), room)
    return x[kept], found[kept], jnp.all(complete) & (found.sum() <= room)


def _line(truth: Any) -> Any:
    """Places between which roots are looked for: evenly over the prior, and ever closer around the truth."""
    close = np.geomspace(0.01, 1.0, 6)
    return jnp.sort(jnp.concatenate([np.linspace(-5.7, 5.7, 25), truth + close, truth - close]))


def _along_line(phi: Any, y: Any, S: int, line: Any, affine: bool, base: Any) -> tuple[Any, Any, Any]:
    along = np.eye(len(base))[S]
    s, found, complete = line_roots(lambda s: (phi(base + s * along) - y)[0], line, affine, _MOST_ROOTS, _STEPS)
    x = base + s[:, None] * along
    # A jump across y is no root.
    close = jnp.abs(jax.vmap(phi)(x)[:, 0] - y[0]) < _CLOSE * (1 + jnp.abs(y[0]))
    return x, found & close, complete


def _log_balance(mixed: WidthMixture, J: Any, x: Any) -> Any:
    """Log of sum_c |J_c| q(x_{F_c}), for one point; J_c is a column of the differential."""
    log_volumes = 0.5 * jnp.log((J**2).sum(0))
    return logsumexp(jnp.stack([log_volumes[S] + mixed.log_density(x, np.arange(len(x)) != S) for S in range(len(x))]))
