"""Control variates: functions of the nodes whose exact mean is known to be zero, regressed out of an average."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np


class Control:
    """Control variates c (n, k) of mean zero: their means on every randomisation, and what gives the slopes on them.

    The mean of values f (n, m) on randomisation r becomes mean_r(f) - means[r] @ (inverse @ f).

    Parameters
    ----------
    variates : array (n, k)
        On the nodes of all randomisations, one after the other, weights included.
    randomisations : int
        Into how many equal parts the nodes are divided.

    Attributes
    ----------
    means : array (randomisations, k)
    inverse : array (k, n)
        Applied to values (n, m) it gives their least-squares slopes (k, m) on the variates.
    """

    def __init__(self, variates: np.ndarray, randomisations: int) -> None:
        self.means = variates.reshape(randomisations, -1, variates.shape[1]).mean(1)
        # Slopes of the pooled nodes; an inverse of centred variates does not see the mean of what it is applied to.
        centred = variates - variates.mean(0)
        self.inverse = np.linalg.pinv(centred.T @ centred, rcond=1e-10, hermitian=True) @ centred.T


class ControlledMeans(NamedTuple):
    """What one randomisation tells of values f (n, m) and their control variates c (n, k): means over its nodes.

    As :class:`Control` for nodes that are many: nothing of their number is kept.
    """

    values: np.ndarray
    """Of f (m,)."""
    variates: np.ndarray
    """Of c (k,)."""
    squares: np.ndarray
    """Of c c^T (k, k)."""
    products: np.ndarray
    """Of c f^T (k, m)."""

    @classmethod
    def of(cls, values: np.ndarray, variates: np.ndarray | None) -> ControlledMeans:
        c = np.zeros((len(values), 0)) if variates is None else variates
        return cls(values.mean(0), c.mean(0), c.T @ c / len(c), c.T @ values / len(c))


def regressed(randomisations: Sequence[ControlledMeans]) -> np.ndarray:
    """Return means of the values (R, m) minus their regression on the control variates, with pooled slopes.

    Only a share of the regression is subtracted: near one where this reduces the scatter between randomisations, near
    zero where it increases the scatter, because nodes of low discrepancy may integrate the values better than the
    variates. The share is a smooth function of both scatters, so that averages are smooth functions of the parameters.
    """
    values, variates, squares, products = (np.stack(part) for part in zip(*randomisations, strict=True))
    f, c = values.mean(0), variates.mean(0)
    slopes = np.linalg.pinv(squares.mean(0) - np.outer(c, c), rcond=1e-10, hermitian=True) @ (
        products.mean(0) - np.outer(c, f)
    )
    without = values - variates @ slopes
    if len(values) == 1:
        return without
    plain, better = values.var(0).sum(), without.var(0).sum()
    share = plain**2 / max(plain**2 + better**2, np.finfo(float).tiny)
    return share * without + (1 - share) * values


def hermite_polynomials(z: np.ndarray, most: int) -> np.ndarray | None:
    """Normalised Hermite polynomials of total degree 2, and 4 where they fit, of normals z (n, d).

    Their mean is zero and they are uncorrelated. ``most`` bounds their number; None if those of degree 2 are too many.
    """
    one, two = z, (z**2 - 1) / np.sqrt(2)
    three, four = (z**3 - 3 * z) / np.sqrt(6), (z**4 - 6 * z**2 + 3) / np.sqrt(24)
    table = [np.ones_like(z), one, two, three, four]
    columns: list[np.ndarray] = []
    for degree in (2, 4):
        choices = list(combinations_with_replacement(range(z.shape[1]), degree))
        if len(columns) + len(choices) > most:
            break
        for choice in choices:
            places, powers = np.unique(choice, return_counts=True)
            columns.append(np.prod([table[power][:, place] for place, power in zip(places, powers, strict=True)], 0))
    return np.stack(columns, 1) if columns else None
