"""A grammar of random problems of all theories, each as Python source that builds it.

A link is a Python expression with a field for every entry of the index matrix, so that a transformation can put any
other expression in the place of an entry, and a failure can be printed as lines that run anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf

#: What every source needs.
HEADER = (
    "import numpy as np, jax, jax.numpy as jnp, asymptotix as asx",
    "from jax.scipy.special import erf",
)

Random = np.random.Generator


def size(rng: Random, low: float, high: float) -> float:
    """A log-uniform number with three digits, so that sources are short."""
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")


def signed(rng: Random, low: float = 0.2, high: float = 3.0) -> float:
    return size(rng, low, high) * float(rng.choice([-1, 1]))


def shift(rng: Random, scale: float = 1.0) -> float:
    """Zero in half of the cases: symmetric functions are the hard ones."""
    return 0.0 if rng.random() < 0.5 else round(float(scale * rng.standard_normal()), 2)


def one_of(rng: Random, things: Sequence[Any]) -> Any:
    return things[int(rng.integers(len(things)))]


# -- functions of one number: continuous in value, and with whole numbers as values --------------------------------

Unary = Callable[[Random, str], str]

CURVES: dict[str, Unary] = {
    "affine": lambda r, x: f"{signed(r)}*{x} + {shift(r)}",
    "square": lambda r, x: f"({x} - {shift(r, 0.5)})**2",
    "cubic": lambda r, x: f"{x}**3 + {shift(r)}*{x}**2 - {size(r, 0.1, 3)}*{x}",
    "monotone cubic": lambda r, x: f"{x}**3 + {size(r, 0.1, 3)}*{x}",
    "quartic": lambda r, x: f"{x}**4 - {size(r, 0.5, 4)}*{x}**2 + {shift(r)}*{x}",
    "abs": lambda r, x: f"jnp.abs({x} - {shift(r)})",
    "relu": lambda r, x: f"jnp.maximum({x} - {shift(r)}, 0.0)",
    "relu squared": lambda r, x: f"jnp.maximum({x}, 0.0)**2",
    "leaky": lambda r, x: f"jnp.where({x} > {shift(r)}, {x}, {signed(r, 0.05, 2)}*{x})",
    "clip": lambda r, x: f"jnp.clip({x}, -{size(r, 0.5, 3)}, {size(r, 0.5, 3)})",
    "dead zone": lambda r, x: f"jnp.sign({x})*jnp.maximum(jnp.abs({x}) - {size(r, 0.2, 2)}, 0.0)",
    "erf": lambda r, x: f"erf({signed(r)}*{x} + {shift(r)})",
    "tanh": lambda r, x: f"jnp.tanh({signed(r, 0.3, 4)}*{x} + {shift(r)})",
    "sigmoid": lambda r, x: f"1/(1 + jnp.exp(-{size(r, 0.3, 5)}*{x} - {shift(r)}))",
    "exp": lambda r, x: f"jnp.exp({signed(r, 0.2, 1.5)}*{x})",
    "bell": lambda r, x: f"jnp.exp(-{size(r, 0.2, 2)}*({x} - {shift(r)})**2)",
    "cauchy": lambda r, x: f"1/(1 + ({x} - {shift(r)})**2)",
    "sine": lambda r, x: f"jnp.sin({size(r, 0.5, 4)}*{x} + {shift(r)})",
    "softplus": lambda r, x: f"jnp.logaddexp(0.0, {signed(r, 0.5, 5)}*{x})",
    "hyperbola": lambda r, x: f"jnp.sqrt({size(r, 0.05, 1)} + {x}**2)",
    "window": lambda r, x: f"jnp.where(jnp.abs({x}) < {size(r, 0.5, 3)}, {x}**2, 0.0)",
    "rare jump": lambda r, x: f"jnp.where({x} > {size(r, 1.2, 3)}, {signed(r, 1, 10)}, {x})",
    "rare square": lambda r, x: f"jnp.where(jnp.abs({x}) > {size(r, 1.2, 3)}, {x}, {x}**2)",
}
STEPS: dict[str, Unary] = {
    "sign": lambda r, x: f"jnp.sign({x} - {shift(r)})",
    "even step": lambda r, x: f"jnp.where(jnp.abs({x}) > {size(r, 0.3, 3)}, 1.0, 0.0)",
    "two steps": lambda r, x: f"jnp.sign({x} - {shift(r)}) + jnp.where({x} > {size(r, 0.5, 3)}, 2.0, 0.0)",
    "floor": lambda r, x: f"jnp.floor({size(r, 1, 3)}*jnp.tanh({x}))",
    "round": lambda r, x: f"jnp.round(jnp.clip({x}, -{one_of(r, [1, 2, 3])}, {one_of(r, [1, 2, 3])}))",
    "parity": lambda r, x: f"jnp.mod(jnp.floor({size(r, 0.5, 2)}*jnp.clip({x}, -4, 4)), 2.0)",
}


def curve(rng: Random, x: str) -> str:
    return one_of(rng, list(CURVES.values()))(rng, x)


def step(rng: Random, x: str) -> str:
    return one_of(rng, list(STEPS.values()))(rng, x)


# -- functions of two and three numbers ---------------------------------------------------------------------------

Several = Callable[..., str]

CURVES_OF_TWO: dict[str, Several] = {
    "product": lambda r, x, y: f"{x}*{y}",
    "sum": lambda r, x, y: f"{curve(r, x)} + {curve(r, y)}",
    "product of curves": lambda r, x, y: f"({curve(r, x)})*({curve(r, y)})",
    "maximum": lambda r, x, y: f"jnp.maximum({x}, {signed(r, 0.3, 1.5)}*{y})",
    "minimum": lambda r, x, y: f"jnp.minimum({x}, {signed(r, 0.3, 1.5)}*{y})",
    "square of sum": lambda r, x, y: f"({x} - {signed(r, 0.3, 2)}*{y})**2",
    "ellipse": lambda r, x, y: f"{x}**2 + {signed(r, 0.3, 3)}*{y}**2",
    "norm": lambda r, x, y: f"jnp.sqrt({x}**2 + {y}**2)",
    "signed size": lambda r, x, y: f"jnp.sign({x})*jnp.abs({y})",
    "step and curve": lambda r, x, y: f"{step(r, x)} + {curve(r, y)}",
    "rare switch": lambda r, x, y: f"jnp.where({x} > {size(r, 0.5, 2.8)}, {y}, {x})",
    "gate": lambda r, x, y: f"{x}/(1 + jnp.exp(-{size(r, 0.5, 3)}*{y}))",
    "distance": lambda r, x, y: f"jnp.abs({x} - {y})",
}
STEPS_OF_TWO: dict[str, Several] = {
    "sign of product": lambda r, x, y: f"jnp.sign({x}*{y})",
    "sum of steps": lambda r, x, y: f"{step(r, x)} + {step(r, y)}",
    "comparison": lambda r, x, y: f"jnp.where({x} > {signed(r, 0.3, 1.5)}*{y}, 1.0, 0.0)",
    "both": lambda r, x, y: f"jnp.where(({x} > 0) & ({y} > {shift(r, 0.5)}), 1.0, 0.0)",
    "sign of curves": lambda r, x, y: f"jnp.sign({x} - ({curve(r, y)}))",
}
CURVES_OF_THREE: dict[str, Several] = {
    "product": lambda r, x, y, t: f"{x}*{y}*{t}",
    "product and curve": lambda r, x, y, t: f"{x}*{y} + {curve(r, t)}",
    "sum": lambda r, x, y, t: f"{curve(r, x)} + {curve(r, y)} + {curve(r, t)}",
    "square and sign": lambda r, x, y, t: f"{x}**2 + jnp.sign({x}*{y}*{t})",
    "maximum": lambda r, x, y, t: f"jnp.maximum({x}, jnp.maximum({y}, {t}))",
    "quadratic": lambda r, x, y, t: f"{x}**2 + {signed(r)}*{y}**2 + {signed(r)}*{y}*{t}",
}
STEPS_OF_THREE: dict[str, Several] = {
    "sign of product": lambda r, x, y, t: f"jnp.sign({x}*{y}*{t})",
    "majority": lambda r, x, y, t: f"jnp.sign(jnp.sign({x}) + jnp.sign({y}) + jnp.sign({t}))",
    "sum": lambda r, x, y, t: f"{step(r, x)} + jnp.sign({y}*{t})",
}
#: By number of entries: curves, steps.
FORMS: Mapping[int, tuple[Mapping[str, Several], Mapping[str, Several]]] = {
    1: (CURVES, STEPS),
    2: (CURVES_OF_TWO, STEPS_OF_TWO),
    3: (CURVES_OF_THREE, STEPS_OF_THREE),
}


def expression(rng: Random, entries: Sequence[str], whole: bool) -> str:
    """A function of all entries, of whole numbers or any, and at times a curve of it."""
    table = FORMS[len(entries)][whole]
    text = one_of(rng, list(table.values()))(rng, *entries)
    if not whole and rng.random() < 0.2:
        text = f"(lambda y: {curve(rng, 'y')})({text})"
    return text


def values_of(body: str, entries: int, size: float = 7.0) -> np.ndarray:
    """Values of an expression at many points out to ``size``, found with NumPy: what a generator may know of a link."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8192, entries)) * rng.choice([1.0, 2.0, 4.0], (8192, 1))
    x = np.clip(np.concatenate([x, np.linspace(-size, size, 2001)[:, None] * np.ones(entries)]), -size, size)
    names = [f"x[:, {entry}]" for entry in range(entries)]
    with np.errstate(all="ignore"):
        return np.asarray(eval(f"0.0*x[:, 0] + {body.format(*names)}", {"jnp": np, "np": np, "erf": erf, "x": x}))


# -- links ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A link with several indices and tokens, as source.

    Parameters
    ----------
    bodies
        One expression per output, with a field {k} for every entry k = index * tokens + token.
    whole
        Whether every output is a whole number of a few.
    """

    bodies: tuple[str, ...]
    indices: int
    tokens: int = 1
    noise: float = 0.0
    whole: bool = False
    form: str = "MultiIndex"
    side: float = 0.0

    def with_(self, **changes: Any) -> Link:
        return dataclasses.replace(self, **changes)

    def each(self, text: str) -> Link:
        """The link with every output y put into ``text``, a function of y."""
        return self.with_(bodies=tuple(f"(lambda y: {text})({body})" for body in self.bodies))

    def entries(self) -> list[str]:
        if self.form == "MultiIndex":
            return [f"z[{index}]" for index in range(self.indices)]
        return [f"Z[{index}, {token}]" for index in range(self.indices) for token in range(self.tokens)]

    def fields(self) -> list[str]:
        return [f"{{{entry}}}" for entry in range(self.indices * self.tokens)]

    def put(self, entries: Sequence[str], **changes: Any) -> Link:
        """The link with other expressions, which may have fields too, in the places of its entries."""
        return self.with_(bodies=tuple(body.format(*entries) for body in self.bodies), **changes)

    def source(self) -> list[str]:
        texts = [body.format(*self.entries()) for body in self.bodies]
        body = texts[0] if len(texts) == 1 else f"jnp.stack([{', '.join(texts)}])"
        if self.form == "MultiIndex":
            model = f"asx.MultiIndex(lambda z: {body}, {self.indices}, {self.noise!r})"
        else:
            model = f"asx.SequenceIndex(lambda Z: {body}, {self.indices}, {self.tokens}, {self.noise!r})"
        side = f", side_information={self.side}" if self.side else ""
        return [f"problem = asx.BayesOptimal({model}{side})"]


def _varying(rng: Random, entries: Sequence[str], whole: bool) -> str:
    """An expression that is finite and not constant, as far as many points tell."""
    while True:
        text = expression(rng, entries, whole)
        values = values_of(text, 4)
        if np.isfinite(values).all() and np.ptp(values) > 1e-3:
            return text


def draw_link(rng: Random, small: bool = False) -> Link:
    """A link of one to three indices, with one or two tokens and one or two outputs."""
    indices = int(rng.choice([1, 2, 3], p=[0.8, 0.2, 0.0] if small else [0.5, 0.38, 0.12]))
    tokens = int(rng.choice([1, 2], p=[0.85, 0.15])) if indices < 3 else 1
    whole = bool(rng.random() < 0.3)
    noise = size(rng, 0.01, 1.0) if rng.random() < 0.35 else 0.0
    entries = [f"{{{entry}}}" for entry in range(indices * tokens)]
    if len(entries) == 4:  # one entry of every index and token is too many for the grammar: all indices, both tokens
        entries = [entries[0], entries[3], entries[1]]
    bodies = [_varying(rng, entries, whole)]
    if rng.random() < 0.1:
        bodies.append(_varying(rng, entries[: int(rng.integers(1, len(entries) + 1))], whole))
    form = "MultiIndex" if tokens == 1 and rng.random() < 0.7 else "SequenceIndex"
    return Link(tuple(bodies), indices, tokens, noise, whole, form)


# -- attention as a model of data ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """DeepAttention of small shapes."""

    options: Mapping[str, Any]

    def source(self) -> list[str]:
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return [f"problem = asx.BayesOptimal(asx.DeepAttention({given}))"]

    def with_(self, **changes: Any) -> Attention:
        return Attention({**self.options, **changes})

    @property
    def indices(self) -> int:
        """Number of index rows of one head."""
        return self.options["layers"] * self.options.get("rank", 1) * (1 if self.options.get("tied", True) else 2)


def draw_attention(rng: Random, small: bool = False) -> Attention:
    layers = 1 if small else int(rng.choice([1, 2], p=[0.6, 0.4]))
    tokens = 2 if layers == 2 or small else int(rng.choice([2, 3]))
    options: dict[str, Any] = {"layers": layers, "tokens": tokens}
    if layers == 2:
        options["skip"] = one_of(rng, [0.5, 1.0, 2.0])
    if rng.random() < 0.3:
        options["activation"] = "'linear'"
    if layers == 1 and not small and rng.random() < 0.2:
        options["rank"] = 2
    if layers == 1 and not small and rng.random() < 0.2:
        options["tied"] = False
    return Attention(options)


# -- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """An AttentionIndex that is trained, or learned Bayes-optimally."""

    target: tuple[str, tuple[float, ...], tuple[float, ...]]  # class, values, weights
    tokens: int
    noise: float
    activation: str
    beta: float | None
    decay: float
    width: float
    parameterization: str
    loss: str | None  # text
    penalty: str | None = None  # text
    bayes: bool = False

    def with_(self, **changes: Any) -> Training:
        return dataclasses.replace(self, **changes)

    def scaled_target(self, scale: float) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
        kind, values, weights = self.target
        if kind == "PowerLaw":
            return kind, (*values[:3], values[3] * scale**2), weights
        return kind, tuple(value * scale for value in values), weights

    def target_text(self) -> str:
        kind, values, weights = self.target
        if kind == "Atoms":
            return f"asx.Atoms({values}, {weights})"
        if kind == "Empirical":
            return f"asx.Empirical(np.array({list(values)}))"
        return f"asx.{kind}({', '.join(map(repr, values))})"

    def source(self) -> list[str]:
        beta = "" if self.beta is None else f", beta={self.beta}"
        task = (
            f"task = asx.AttentionIndex(tokens={self.tokens}, target={self.target_text()}, noise={self.noise!r}"
            f", activation={self.activation!r}{beta})"
        )
        if self.bayes:
            return [task, "problem = asx.BayesOptimal(task)"]
        options = [f"weight_decay={self.decay!r}", f"width_ratio={self.width!r}"]
        options.append(f"parameterization={self.parameterization!r}")
        options += [f"{name}={text}" for name in ("loss", "penalty") if (text := getattr(self, name)) is not None]
        return [task, f"problem = asx.RiskMinimization(task, {', '.join(options)})"]


def draw_target(rng: Random) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    kind = one_of(rng, ["MarchenkoPastur", "Atoms", "PowerLaw", "Empirical"])
    if kind == "MarchenkoPastur":
        return kind, (size(rng, 0.1, 2),), ()
    if kind == "PowerLaw":
        return kind, (size(rng, 1.5, 4), size(rng, 10, 200), one_of(rng, [0.3, 0.6, 1.0]), 1.0), ()
    if kind == "Empirical":
        return kind, tuple(sorted(0.0 if rng.random() < 0.3 else size(rng, 0.1, 3) for _ in range(4))) + (1.5,), ()
    values = tuple(sorted({0.0, *(size(rng, 0.2, 3) for _ in range(2))}))
    weights = tuple(round(float(w), 3) for w in rng.dirichlet(3 * np.ones(len(values)))[:-1])
    return kind, values, (*weights, round(1 - sum(weights), 3))


def draw_training(rng: Random, small: bool = False, bayes: bool = False) -> Training:
    linear = bool(rng.random() < (0.8 if small else 0.45))
    loss = None
    if not linear and not bayes:
        loss = one_of(rng, [None, None, "'cross_entropy'"])
    return Training(
        target=draw_target(rng),
        tokens=2 if small else int(rng.choice([2, 3], p=[0.8, 0.2])),
        noise=0.0 if rng.random() < 0.2 else size(rng, 0.01, 2),
        activation="linear" if linear else "softmax",
        beta=None if linear or rng.random() < 0.4 else size(rng, 0.3, 3),
        decay=size(rng, 1e-3, 1),
        width=1.0 if rng.random() < 0.6 else size(rng, 1, 3),
        parameterization=one_of(rng, ["factorized", "full"]),
        loss=loss,
        bayes=bayes,
    )


# -- attention paths -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paths:
    """A small network, with random data or those of a task; ``changes`` are lines between the data and the problem."""

    seed: int
    examples: int
    tokens: int
    features: int
    heads: tuple[int, ...]
    outputs: int
    labels: str
    readout: str
    temperature: float
    prior_variance: float | tuple[float, ...]
    widths: tuple[float, ...]
    task: bool = False
    changes: tuple[str, ...] = ()

    def with_(self, **changes: Any) -> Paths:
        return dataclasses.replace(self, **changes)

    def data(self) -> list[str]:
        P, T, F = self.examples, self.tokens, self.features
        shape = (P,) if self.outputs == 0 else (P, self.outputs)
        if self.task:
            given = f"examples={P}, test_examples=4, seed={self.seed}, length={T - 1}, beta=2.0"
            return [
                f"task = asx.tasks.hidden_markov({given})",
                "inputs, labels, test, W = task.inputs, task.labels, task.test_inputs, list(task.network.query_key)",
            ]
        return [
            f"inputs, test = rng.standard_normal(({P}, {T}, {F})), rng.standard_normal((3, {T}, {F}))",
            f"labels = rng.standard_normal({shape})" if self.labels == "real" else
            f"labels = np.sign(rng.standard_normal({shape}))",
            f"W = [0.5*rng.standard_normal((heads, {F}, {F})) for heads in {self.heads}]",
        ]  # fmt: skip

    def source(self) -> list[str]:
        return [
            f"rng = np.random.default_rng({self.seed})",
            *self.data(),
            f"temperature, prior_variance, readout = {self.temperature!r}, {self.prior_variance!r}, {self.readout}",
            "attended = lambda x: x",
            "network = lambda: asx.AttentionPaths(query_key=W, readout=readout)",
            *self.changes,
            "problem = asx.PathPosterior(network(), attended(inputs), labels, temperature, prior_variance)",
        ]  # fmt: skip


def draw_paths(rng: Random, small: bool = False) -> Paths:
    task = bool(rng.random() < 0.15)
    layers = 2 if task else int(rng.integers(1, 3))
    heads = tuple(int(rng.integers(1, 4 if layers == 1 else 3)) for _ in range(layers))
    variances = 1.0 if rng.random() < 0.5 else tuple(size(rng, 0.3, 3) for _ in range(layers + 2))
    tokens, features = int(rng.integers(3 if task else 2, 5)), int(rng.integers(2, 6))
    return Paths(
        seed=int(rng.integers(10**6)),
        examples=int(rng.integers(3, 6 if small else 12)),
        tokens=tokens,
        features=200 + tokens if task else features,
        heads=(2, 2) if task else heads,
        outputs=0 if task or rng.random() < 0.75 else int(rng.integers(1, 3)),
        labels=one_of(rng, ["sign", "real"]),
        readout=one_of(rng, ["'mean'", "0"]),
        temperature=size(rng, 1e-3, 1),
        prior_variance=variances,
        widths=tuple(sorted(float(w) for w in rng.choice([3, 5, 8, 10, 20, 50, 200, np.inf], 2, replace=False))),
        task=task,
    )
