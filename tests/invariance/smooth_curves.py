"""Curves at random points: every point converges, and neighbours lie on a monotone, smooth curve.

``python -m invariance.smooth_curves`` runs the whole campaign; ``--only NAME`` one curve, ``--points 40`` fewer points.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import asymptotix as asx

#: Combined errors within which a point must lie on the curve of its neighbours; see :data:`invariance.harness.ERRORS`.
ERRORS = 6.0
#: Neighbours on either side, through which a cubic is drawn.
NEIGHBOURS = 2
#: Points on either side whose fourth divided difference bounds what the cubic leaves out, and the factor of safety.
APART, SAFETY = 5, 3.0
#: Relative difference that rounding makes.
ROUNDING = 2e-6


@dataclass(frozen=True)
class Curve:
    """A problem, the control that is drawn at random, the observable, and the direction in which it goes.

    Parameters
    ----------
    sign
        +1 for a curve that rises with the control, -1 for one that falls, 0 where theory promises neither.
    logarithmic
        Whether the control is drawn on a logarithmic scale.
    """

    problem: Callable[[], Any]
    control: str
    low: float
    high: float
    points: int
    observable: str
    sign: int
    logarithmic: bool = False
    others: tuple[tuple[str, float], ...] = ()


def _deep(**options: Any) -> Callable[[], Any]:
    return lambda: asx.BayesOptimal(asx.DeepAttention(**options))


def _link(link: Callable[[Any], Any], indices: int, noise: float = 0.0) -> Callable[[], Any]:
    return lambda: asx.BayesOptimal(asx.MultiIndex(link, indices, noise))


def _training(**options: Any) -> Callable[[], Any]:
    def made() -> Any:
        task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)
        return asx.RiskMinimization(task, **{"weight_decay": 0.05, **options})

    return made


def _paths() -> Any:
    data = asx.tasks.hidden_markov(examples=40, seed=0)
    return asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)


LINKS: dict[str, tuple[Callable[[Any], Any], int, float]] = {
    "square": (lambda z: z[0] ** 2, 1, 0.0),
    "erf": (lambda z: jnp.tanh(2 * z[0]), 1, 0.0),
    "sign": (lambda z: jnp.sign(z[0]), 1, 0.0),
    "relu": (lambda z: jnp.maximum(z[0], 0.0), 1, 0.0),
    "noisy cubic": (lambda z: z[0] ** 3 - z[0], 1, 0.2),
    "clipped": (lambda z: jnp.clip(z[0] ** 2, 0.2, 2.0), 1, 0.0),
    "cosine": (lambda z: jnp.cos(2 * z[0]), 1, 0.0),
    "product": (lambda z: z[0] * z[1], 2, 0.0),
    "ellipse": (lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2, 0.0),
    "two signs": (lambda z: jnp.sign(z[0]) + jnp.sign(z[1]), 2, 0.0),
}
CURVES: dict[str, Curve] = {
    "two layers": Curve(_deep(layers=2, tokens=2), "alpha", 0.05, 1.6, 400, "overlap", 1),
    **{
        f"two layers, skip {skip}": Curve(_deep(layers=2, tokens=2, skip=skip), "alpha", 0.05, 1.6, 100, "overlap", 1)
        for skip in (0.3, 0.6, 1.5, 3.0)
    },
    "one layer, three tokens": Curve(_deep(layers=1, tokens=3), "alpha", 0.05, 1.6, 100, "overlap", 1),
    **{f"link: {name}": Curve(_link(*link), "alpha", 0.05, 1.6, 100, "overlap", 1) for name, link in LINKS.items()},
    "training, alpha": Curve(_training(), "alpha", 0.05, 10.0, 400, "test_error", -1, True),
    "training, decay": Curve(_training(), "weight_decay", 1e-3, 1.0, 400, "test_error", 0, True, (("alpha", 1.0),)),
    "paths, width": Curve(_paths, "width", 5.0, 1000.0, 200, "order_parameter", 0, True),
}


@dataclass(frozen=True)
class Findings:
    """What a curve shows: its points, the words of those that did not converge, and what is not monotone or smooth."""

    points: int
    left_out: list[str]
    falls: list[str]
    bends: list[str]
    largest: float
    seconds: float

    @property
    def faults(self) -> tuple[list[str], list[str], list[str]]:
        return self.left_out, self.falls, self.bends

    def __str__(self) -> str:
        counts = ", ".join(
            f"{len(found)} {name}"
            for name, found in zip(("not converged", "not monotone", "not smooth"), self.faults, strict=True)
        )
        lines = [f"    {line}" for lines in self.faults for line in lines][:12]
        head = f"{self.points} points: {counts}; largest distance {self.largest:.2g} errors; {self.seconds:.0f} s"
        return "\n".join([head, *lines])


def examined(curve: Curve, points: int | None = None, seed: int = 0) -> Findings:
    """Solve at random points of the curve, and look at every point beside its neighbours."""
    rng, began = np.random.default_rng(seed), time.monotonic()
    scale = np.log if curve.logarithmic else np.asarray
    draws = rng.uniform(scale(curve.low), scale(curve.high), points or curve.points)
    x = np.sort(np.exp(draws) if curve.logarithmic else draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        controls: dict[str, Any] = {curve.control: x, **dict(curve.others)}
        found = asx.solve(curve.problem(), progress=False, **controls)
    ds = found.ds
    names, words = [f"{curve.control} = {one:.6g}" for one in x], [str(word) for word in ds["status"].values]
    good = ds["converged"].values | ["within errors of the threshold" in word for word in words]
    left_out = [f"{name}: {word}" for name, word, fine in zip(names, words, good, strict=True) if not fine]
    both = (ds[name].values.reshape(len(x), -1) for name in (curve.observable, f"{curve.observable}_err"))
    values, errors = (one[good] for one in both)
    kept = np.flatnonzero(good)
    names, words, t = [names[k] for k in kept], [words[k] for k in kept], scale(x)[good]
    falls = _falls(names, curve.sign * values, errors) if curve.sign else []
    bends, largest = [], 0.0
    for k in range(NEIGHBOURS, len(t) - NEIGHBOURS):
        near = [k + j for j in range(-NEIGHBOURS, NEIGHBOURS + 1)]
        if len({_phase(words[j], values[j]) for j in near}) > 1:
            continue  # a curve has a kink or a jump where something begins to be learned
        beside = [[k + s * j for j in range(1, APART + 1)] for s in (-1, 1)]
        beside = [[j for j in side if 0 <= j < len(t)] for side in beside]
        bends_of = [_fourth(t[side], values[side]) for side in beside if len(side) == APART]
        if not bends_of:
            continue
        apart, said = _distance(t[near], values[near], errors[near], SAFETY * np.max(bends_of, axis=0))
        largest = max(largest, apart)
        if apart > ERRORS:
            bends.append(f"{names[k]}: {said}")
    return Findings(len(x), left_out, falls, bends, largest, time.monotonic() - began)


def _phase(words: str, values: np.ndarray) -> tuple[Any, ...]:
    """What is learned and what exactly, which changes at thresholds."""
    return words.split(":")[0], tuple(values > 1e-6), tuple(values > 1 - 1e-6)


def _falls(names: Sequence[str], values: np.ndarray, errors: np.ndarray) -> list[str]:
    """Points where a value on the diagonal lies below that of the point before by more than their errors."""
    size, lines = math.isqrt(values.shape[1]), []
    for column in range(0, values.shape[1], size + 1):
        one, error = values[:, column], errors[:, column]
        allowed = ERRORS * np.hypot(error[1:], error[:-1]) + ROUNDING * abs(one[1:])
        lines += [
            f"{names[k + 1]}: {one[k + 1]:.7g}±{error[k + 1]:.1e} after {one[k]:.7g}±{error[k]:.1e}"
            for k in np.flatnonzero(one[1:] < one[:-1] - allowed).tolist()
        ]
    return lines


def _fourth(t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Size of the fourth divided difference of values at five places."""
    return abs(np.array([1 / np.prod(np.delete(a - t, i)) for i, a in enumerate(t)]) @ values)


def _distance(t: np.ndarray, values: np.ndarray, errors: np.ndarray, fourth: np.ndarray) -> tuple[float, str]:
    """Distance of the middle point from the cubic through the others, in errors.

    The cubic leaves out the fourth divided difference times the product of the distances.
    """
    near, at = np.delete(np.arange(len(t)), NEIGHBOURS), t - t[NEIGHBOURS]
    weights = _at_zero(at[near])
    cubic = weights @ values[near]
    beyond = fourth * abs(np.prod(at[near]))
    value, error = values[NEIGHBOURS], errors[NEIGHBOURS]
    # Neighbours that nearly coincide have large weights, and so have their errors.
    sizes = 1 + abs(weights).sum()
    allowed = error + abs(weights) @ errors[near] + sizes * ROUNDING * abs(value) / ERRORS
    allowed = np.maximum(allowed, np.finfo(float).tiny)
    apart = np.maximum(abs(value - cubic) - beyond, 0.0) / allowed
    worst = int(np.argmax(apart))
    said = f"{value[worst]:.7g}±{error[worst]:.1e}, its neighbours say {cubic[worst]:.7g}"
    return float(apart[worst]), f"{said}, {apart[worst]:.3g} errors apart"


def _at_zero(at: np.ndarray) -> np.ndarray:
    """Weights of values at these places in the polynomial through them, at zero."""
    return np.array([np.prod([b / (b - a) for j, b in enumerate(at) if j != i]) for i, a in enumerate(at)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m invariance.smooth_curves", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CURVES), default=list(CURVES), metavar="NAME")
    parser.add_argument("--points", type=int, default=None, help="points of each curve")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    for name in given.only:
        print(f"{name}: {examined(CURVES[name], given.points, given.seed)}", flush=True)


if __name__ == "__main__":
    main()
