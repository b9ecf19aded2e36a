"""Control variates: functions of the nodes whose exact mean is known to be zero, regressed out of an average."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np


class Control:
    """Control variates: k functions of exact mean zero on n nodes, with the matrix that gives regression slopes.

    They correct the mean of values f (n, m) over randomisation r to mean_r(f) - means[r] @ (inverse @ f).

    Parameters
    ----------
    variates : array (n, k)
        Values on the nodes of all randomisations, one after the other, importance weights included.
    randomisations : int
        Number of randomisations; each has the same number of nodes.

    Attributes
    ----------
    means : array (randomisations, k)
        Means of the variates over the nodes of each randomisation.
    inverse : array (k, n)
        Matrix that maps values (n, m) to their least-squares slopes (k, m) on the variates.
    """

    def __init__(self, variates: np.ndarray, randomisations: int) -> None:
        self.means = variates.reshape(randomisations, -1, variates.shape[1]).mean(1)
        # Slopes of the pooled nodes. As the variates are centred, the mean of the values does not matter.
        centred = variates - variates.mean(0)
        self.inverse = np.linalg.pinv(centred.T @ centred, rcond=1e-10, hermitian=True) @ centred.T


class ControlledMeans(NamedTuple):
    """Means over the n nodes of one randomisation, of values f (n, m), control variates c (n, k) and their products.

    These means replace :class:`Control` if there are many nodes, because their size does not depend on n.
    """

    values: np.ndarray
    """Means of f (m,)."""
    variates: np.ndarray
    """Means of c (k,)."""
    squares: np.ndarray
    """Means of c c^T (k, k)."""
    products: np.ndarray
    """Means of c f^T (k, m)."""

    @classmethod
    def of(cls, values: np.ndarray, variates: np.ndarray | None) -> ControlledMeans:
        c = np.zeros((len(values), 0)) if variates is None else variates
        return cls(values.mean(0), c.mean(0), c.T @ c / len(c), c.T @ values / len(c))


def regressed(randomisations: Sequence[ControlledMeans]) -> np.ndarray:
    """Return the means (R, m) of m values over each of R randomisations, minus their regression on control variates.

    All randomisations have the same slopes. Only a share of the regression is subtracted: near one where this reduces
    the scatter between randomisations, near zero where it increases the scatter, because nodes of low discrepancy may
    integrate the values better than the variates. The share is a smooth function of both scatters, so that averages are
    smooth functions of the parameters.
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
    """Return the k normalised Hermite polynomials of total degree 2 and 4 of standard normals z (n, d), shape (n, k).

    They are uncorrelated and have mean zero. If k would exceed ``most``, degree 4 is left out; if degree 2 alone has
    more than ``most``, the result is None.
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
