"""Exact transformations of problems: each makes of a problem another one, with the map between their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from invariance import grammar
from invariance.grammar import Attention, Link, Paths, Random, Training, curve, one_of, size
from invariance.questions import Answer, Pair, Question

Map = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

OVERLAPS = ("overlap", "estimation_error")
ERRORS = ("test_error", "plugin_error")
THRESHOLDS = ("weak_recovery", "exact_recovery")


def times(factor: float) -> Map:
    return lambda value, error: (factor * value, abs(factor) * error)


def plus(shift: float | np.ndarray) -> Map:
    return lambda value, error: (value + shift, error)


def between(left: np.ndarray) -> Map:
    """Q -> left Q left^T, of every point."""
    return lambda value, error: (left @ value @ left.T, abs(left) @ error @ abs(left).T)


def unchanged(answer: Answer) -> Answer:
    return answer


@dataclass(frozen=True)
class Turned:
    """What a transformation of a link gives: the other link, and how the answer changes."""

    link: Link
    carry: Callable[[Answer], Answer] = unchanged
    names: Sequence[str] = OVERLAPS
    #: alpha of the other problem over that of the first.
    ratio: float = 1.0
    #: Matrix A of the new overlap A Q A^T, where indices are moved.
    moved: np.ndarray | None = None


# -- links: outputs ------------------------------------------------------------------------------------------------


def units(rng: Random, link: Link) -> Turned:
    """c y + b, with noise times c^2."""
    c = float(f"{10 ** rng.uniform(-10, 10):.3g}") * float(rng.choice([-1, 1]))
    b = 0.0 if rng.random() < 0.4 else float(f"{c * rng.standard_normal() * 10 ** rng.uniform(0, 2):.3g}")
    other = link.each(f"{c!r}*y + {b!r}").with_(noise=link.noise * c**2)

    def carry(answer: Answer) -> Answer:
        return answer.mapped(test_error=times(c**2), plugin_error=times(c**2))

    return Turned(other, carry, (*OVERLAPS, *ERRORS))


#: Strictly monotone functions of u, which is y brought to [-3, 3] at all |z| < 7: there every slope is between 1e-2 and
#: 30, so that rounding moves u by less than 1e-13 and floating point keeps what the exact map keeps.
MONOTONE = ("jnp.tanh(u)", "jnp.exp(u)", "jnp.arcsinh(u)", "u + u**3", "-jnp.exp(-u)", "u + 0.5*jnp.sin(u)", "u**3")


def monotone(rng: Random, link: Link) -> Turned | None:
    """A strictly monotone function of a noiseless number."""
    if link.noise or len(link.bodies) != 1:
        return None
    values = grammar.values_of(link.bodies[0], link.indices * link.tokens)
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(values).all() and high > low) or high - low > 1e6:
        return None
    middle, half = float(f"{(low + high) / 2:.3g}"), float(f"{(high - low) / 6:.3g}")
    function = one_of(rng, MONOTONE)
    return Turned(link.each(f"(lambda u: {function})((y - {middle!r})/{half!r})"))


def relabelled(rng: Random, link: Link) -> Turned | None:
    """Other names, in another order, for outputs that are whole numbers: the cosine is one to one on them."""
    if link.noise or not link.whole:
        return None
    return Turned(link.each(one_of(rng, ["jnp.cos(y + 0.3)", "1.7*y + 0.3*y**3", "-y", "jnp.exp(-0.5*y)"])))


def stacked(rng: Random, link: Link) -> Turned | None:
    """A noiseless output beside any function of itself."""
    if link.noise or len(link.bodies) != 1:
        return None
    other = f"(lambda y: {curve(rng, 'y')})({link.bodies[0]})"
    bodies = (link.bodies[0], other) if rng.random() < 0.5 else (other, link.bodies[0])
    return Turned(link.with_(bodies=bodies))


def seen_twice(rng: Random, link: Link) -> Turned | None:
    """Every output twice, with twice the noise."""
    if not link.noise:
        return None
    return Turned(link.with_(bodies=link.bodies + link.bodies, noise=2 * link.noise))


# -- links: indices and tokens -------------------------------------------------------------------------------------


def _moved(link: Link, rows: np.ndarray, entries: Sequence[str]) -> Turned:
    """z -> ``rows`` z in the link: overlaps become rows^T Q rows."""

    def carry(answer: Answer) -> Answer:
        return answer.mapped(overlap=between(rows.T))

    return Turned(link.put(entries), carry, (*OVERLAPS, *ERRORS, "free_entropy"), moved=rows.T)


def permuted(rng: Random, link: Link) -> Turned | None:
    """Indices in another order."""
    if link.indices < 2:
        return None
    order = rng.permutation(link.indices)
    if (order == np.arange(link.indices)).all():
        order = order[::-1]
    entries = [f"{{{order[i] * link.tokens + t}}}" for i in range(link.indices) for t in range(link.tokens)]
    return _moved(link, np.eye(link.indices)[order], entries)


def reflected(rng: Random, link: Link) -> Turned:
    """Some indices with another sign."""
    signs = rng.choice([-1.0, 1.0], link.indices)
    signs[int(rng.integers(link.indices))] = -1.0
    entries = [
        f"({'-' if signs[i] < 0 else ''}{{{i * link.tokens + t}}})"
        for i in range(link.indices) for t in range(link.tokens)
    ]  # fmt: skip
    return _moved(link, np.diag(signs), entries)


def rotated(rng: Random, link: Link) -> Turned | None:
    """The link of rotated indices, g(R z)."""
    if link.indices < 2:
        return None
    rotation, _ = np.linalg.qr(rng.standard_normal((link.indices, link.indices)))
    entries = [
        "(" + " + ".join(f"{rotation[i, j]!r}*{{{j * link.tokens + t}}}" for j in range(link.indices)) + ")"
        for i in range(link.indices) for t in range(link.tokens)
    ]  # fmt: skip
    entries = [entry.replace("np.float64(", "").replace(")*", "*") for entry in entries]
    return _moved(link, rotation, entries)


def useless_index(rng: Random, link: Link) -> Turned | None:
    """One more index, of which the link knows nothing."""
    if link.indices > 2:
        return None
    first = bool(rng.random() < 0.3)
    P, M = link.indices, link.tokens
    places = [(i + first) * M + t for i in range(P) for t in range(M)]
    kept = np.eye(P + 1)[:, 1:] if first else np.eye(P + 1)[:, :P]

    def carry(answer: Answer) -> Answer:
        def thresholds(value: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            at = 0 if first else P
            return np.insert(value, at, np.inf, axis=-1), np.insert(error, at, 0.0, axis=-1)

        return answer.mapped(overlap=between(kept), estimation_error=plus(1.0), weak_recovery=thresholds)

    other = link.put([f"{{{k}}}" for k in places], indices=P + 1)
    return Turned(other, carry, (*OVERLAPS, *ERRORS, "free_entropy"))


def useless_token(rng: Random, link: Link) -> Turned | None:
    """One more token, of which the link knows nothing."""
    if link.tokens > 1:
        return None
    token = int(rng.integers(2))
    entries = [f"{{{2 * i + token}}}" for i in range(link.indices)]
    other = link.put(entries, tokens=2, form="SequenceIndex")
    return Turned(other, names=(*OVERLAPS, *ERRORS, "free_entropy"))


def permuted_tokens(rng: Random, link: Link) -> Turned | None:
    """Tokens in the other order."""
    if link.tokens != 2:
        return None
    entries = [f"{{{2 * i + 1 - t}}}" for i in range(link.indices) for t in range(2)]
    return Turned(link.put(entries), names=(*OVERLAPS, *ERRORS, "free_entropy"))


def two_samples(rng: Random, link: Link) -> Turned | None:
    """The outputs of two tokens at once: twice as many samples."""
    if link.tokens > 1 or link.indices > 2 or len(link.bodies) != 1:
        return None
    first, second = ([f"{{{2 * i + t}}}" for i in range(link.indices)] for t in range(2))
    bodies = (link.bodies[0].format(*first), link.bodies[0].format(*second))
    other = link.with_(bodies=bodies, tokens=2, form="SequenceIndex")

    def carry(answer: Answer) -> Answer:
        half = {name: times(0.5) for name in (*THRESHOLDS, "exact_recovery_informed")}
        return answer.mapped(test_error=times(2.0), plugin_error=times(2.0), **half)

    return Turned(other, carry, (*OVERLAPS, *ERRORS, "free_entropy"), ratio=0.5)


def other_form(rng: Random, link: Link) -> Turned | None:
    """MultiIndex written as SequenceIndex of one token, and the other way round."""
    if link.tokens > 1:
        return None
    form = "SequenceIndex" if link.form == "MultiIndex" else "MultiIndex"
    return Turned(link.with_(form=form), names=(*OVERLAPS, *ERRORS, "free_entropy"))


LINK_TURNS: dict[str, Callable[[Random, Link], Turned | None]] = {
    "units of y": units,
    "monotone map of y": monotone,
    "relabelled outputs": relabelled,
    "y and a function of y": stacked,
    "y twice, noise doubled": seen_twice,
    "permuted indices": permuted,
    "reflected indices": reflected,
    "rotated indices": rotated,
    "useless index": useless_index,
    "useless token": useless_token,
    "permuted tokens": permuted_tokens,
    "two tokens, half alpha": two_samples,
    "MultiIndex, SequenceIndex": other_form,
}


def alphas_of(rng: Random, scale: float = 1.0, small: bool = False) -> list[float]:
    count = 1 if small else int(rng.integers(1, 3))
    return sorted({size(rng, 0.08 * scale, 2.5 * scale) for _ in range(count)})


def link_pair(rng: Random, name: str, small: bool) -> Pair | None:
    """A random link and one of the transformations of links."""
    link = grammar.draw_link(rng, small)
    turned = LINK_TURNS[name](rng, link)
    if turned is None:
        return None
    if rng.random() < 0.15 and not small:
        return _thresholds_of_links(name, link, turned)
    alphas = alphas_of(rng, 1 / link.tokens, small)
    second = [turned.ratio * alpha for alpha in alphas]
    first, other, start = link, turned.link, {}
    if name != "useless index" and rng.random() < 0.15:  # of a useless index the side information is all there is
        side = size(rng, 0.01, 0.5)
        first, other = first.with_(side=side), other.with_(side=side)
    elif rng.random() < 0.1:
        start = {"start": "informed"}
    return Pair(
        "link", name,
        Question(first.source(), "solve", {"alpha": alphas, **start}),
        Question(other.source(), "solve", {"alpha": second, **start}),
        turned.names, turned.carry,
    )  # fmt: skip


def _of_moved_indices(left: np.ndarray) -> Callable[[Answer], Answer]:
    """How thresholds change where indices are moved by a matrix."""
    rows = abs(left)
    if not ((rows > 1e-9).sum(1) == 1).all():
        return lambda answer: answer.mapped(weak_recovery=_first)
    order = rows.argmax(1)  # they are permuted or reflected
    return lambda answer: answer.mapped(weak_recovery=lambda value, error: (value[:, order], error[:, order]))


def _thresholds_of_links(name: str, link: Link, turned: Turned) -> Pair:
    """The same transformation seen by the thresholds; of mixed indices the first threshold is compared."""
    carry = turned.carry if turned.moved is None else _of_moved_indices(turned.moved)
    mixed = turned.moved is not None and not ((abs(turned.moved) > 1e-9).sum(1) == 1).all()
    options = {"which": ["weak_recovery", "exact_recovery"]}
    after = [
        "value, error = answer.ds['weak_recovery'].values, answer.ds['weak_recovery_err'].values",
        "numbers['weak_recovery'] = (value[[value.argmin()]], error[[value.argmin()]])",
    ]
    return Pair(
        "link thresholds", name,
        Question(link.source(), "thresholds", options),
        Question(turned.link.source(), "thresholds", options, after=after if mixed else ()),
        THRESHOLDS, carry,
    )  # fmt: skip


def _first(value: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return value.min(1), np.take_along_axis(error, value.argmin(1)[:, None], 1)[:, 0]


# -- any problem: the grid, and the nodes --------------------------------------------------------------------------


def regridded(rng: Random, question: Question, control: str) -> tuple[str, Question, Callable[[Answer], Answer]]:
    """The question on another grid that holds some of the points, and the map of answers."""
    values = list(question.options[control])
    kind = one_of(rng, ["order of the grid", "subset of the grid", "denser grid", "one point alone"])
    if kind == "order of the grid":
        order = [int(k) for k in rng.permutation(len(values))] if len(values) > 2 else [1, 0][: len(values)]
        other, chosen = [values[k] for k in order], order
    elif kind == "subset of the grid":
        chosen = sorted(int(k) for k in rng.choice(len(values), max(1, len(values) - 1), replace=False))
        other = [values[k] for k in chosen]
    elif kind == "one point alone":
        chosen = [int(rng.integers(len(values)))]
        other = [values[k] for k in chosen]
    else:
        finite = [value for value in values if np.isfinite(value)]
        between = [float(f"{np.sqrt(a * b):.4g}") for a, b in itertools.pairwise(finite)]
        other = sorted({*values, *between, float(f"{0.6 * finite[0]:.4g}")})
        asked = question.with_(options={**question.options, control: other})
        return kind, asked, _on_grid(other, values)
    return kind, question.with_(options={**question.options, control: other}), lambda answer: answer.points(chosen)


def _on_grid(other: list[float], values: list[float]) -> Callable[[Answer], Answer]:
    """The answer on ``values`` with points that are unknown on the rest of the grid ``other``."""

    def carry(answer: Answer) -> Answer:
        known = answer.points([values.index(value) if value in values else 0 for value in other])
        new = np.array([value not in values for value in other])
        numbers = {}
        for name, (value, error) in known.numbers.items():
            value = value.copy()
            value[new] = np.nan
            numbers[name] = (value, error)
        converged = np.where(new, False, known.converged)
        words = [SKIPPED if isnew else word for isnew, word in zip(new, known.words, strict=True)]
        return Answer(numbers, converged, words, known.refusal, known.error)

    return carry


#: Status of a point that only one of the questions has.
SKIPPED = "asked of one only"

#: Lines that give the state evolution of a problem other nodes.
OTHER_NODES = {
    "other seed of nodes": "evolution.nodes.others(3)",
    "double nodes": "evolution.nodes.others(2).more(2)",
    "half nodes": "half(evolution.nodes.others(4))",
}
_HALF = (
    "def half(nodes):\n    nodes._few //= 2\n    return nodes",
    "evolution = problem.theory.state_evolution",
)


def other_nodes(rng: Random, question: Question) -> tuple[str, Question]:
    """The question on other nodes of state evolution."""
    kind = one_of(rng, list(OTHER_NODES))
    set_nodes = (
        "problem.theory.state_evolution = type(evolution)(evolution.channel, evolution.side_information,"
        f" nodes={OTHER_NODES[kind]})"
    )
    return kind, question.with_(before=[*_HALF, set_nodes])


ALL_OF_LINKS = (*OVERLAPS, *ERRORS, "free_entropy")


def link_grid(rng: Random, small: bool) -> Pair | None:
    link = grammar.draw_link(rng, small)
    alphas = sorted({size(rng, 0.08 / link.tokens, 2.5 / link.tokens) for _ in range(3)})
    first = Question(link.source(), "solve", {"alpha": alphas})
    name, second, carry = regridded(rng, first, "alpha")
    return Pair("link", name, first, second, ALL_OF_LINKS, carry)


def link_nodes(rng: Random, small: bool) -> Pair | None:
    link = grammar.draw_link(rng, small)
    first = Question(link.source(), "solve", {"alpha": alphas_of(rng, 1 / link.tokens, small)})
    name, second = other_nodes(rng, first)
    return Pair("link", name, first, second, ALL_OF_LINKS)


# -- attention as a model of data ----------------------------------------------------------------------------------

#: DeepAttention as a link: B_0 = I, U_l = Z_l B_{l-1}^T, B_l = (skip I + R(U^T U)) B_{l-1}, y = R(U_L^T U_L).
ATTENTION_LINK = (
    "def link(Z):",
    "    B = jnp.eye({tokens})",
    "    for layer in range({layers}):",
    "        U, K = (Z[part + {rank}*layer : part + {rank}*(layer + 1)] @ B.T for part in ({queries}, 0))",
    "        A = {activation}(U.T @ K)",
    "        B = ({skip}*jnp.eye({tokens}) + A) @ B",
    "    return A",
)
_ACTIVATIONS = {"'softmax'": "jax.nn.softmax", "'linear'": "(lambda U: U)"}


def attention_as_link(rng: Random, small: bool) -> Pair | None:
    """DeepAttention, and the same map written as a link."""
    model = grammar.draw_attention(rng, small)
    options = model.options
    rank = options.get("rank", 1)
    given = {
        "tokens": options["tokens"], "layers": options["layers"], "rank": rank, "skip": options.get("skip", 1.0),
        "queries": 0 if options.get("tied", True) else options["layers"] * rank,
        "activation": _ACTIVATIONS[options.get("activation", "'softmax'")],
    }  # fmt: skip
    lines = [line.format(**given) for line in ATTENTION_LINK]
    lines.append(f"problem = asx.BayesOptimal(asx.SequenceIndex(link, {model.indices}, {options['tokens']}))")
    alphas = alphas_of(rng, 0.5, small)
    return Pair(
        "attention", "built in, link",
        Question(model.source(), "solve", {"alpha": alphas}), Question(lines, "solve", {"alpha": alphas}),
        (*OVERLAPS, *ERRORS),
    )  # fmt: skip


def attention_activation(rng: Random, small: bool) -> Pair | None:
    """The built-in activation, and a function that does the same."""
    model = grammar.draw_attention(rng, small)
    own = {"'softmax'": "lambda U: jax.nn.softmax(U, axis=-1)", "'linear'": "lambda U: U"}
    other = model.with_(activation=own[model.options.get("activation", "'softmax'")])
    options = {"alpha": alphas_of(rng, 0.5, small)}
    return Pair(
        "attention", "own activation",
        Question(model.source(), "solve", options), Question(other.source(), "solve", options), (*OVERLAPS, *ERRORS),
    )  # fmt: skip


def attention_skip(rng: Random, small: bool) -> Pair | None:
    """The skip connection of one layer, which has no part in its output."""
    model = Attention({**grammar.draw_attention(rng, True).options, "skip": 1.0})
    options = {"alpha": alphas_of(rng, 0.5, small)}
    other = model.with_(skip=one_of(rng, [0.0, 0.3, 10.0]))
    return Pair(
        "attention", "skip of one layer",
        Question(model.source(), "solve", options), Question(other.source(), "solve", options), ALL_OF_LINKS,
    )  # fmt: skip


def attention_grid(rng: Random, small: bool) -> Pair | None:
    model = grammar.draw_attention(rng, small)
    alphas = sorted({size(rng, 0.05, 1.5) for _ in range(3)})
    first = Question(model.source(), "solve", {"alpha": alphas})
    name, second, carry = regridded(rng, first, "alpha")
    return Pair("attention", name, first, second, ALL_OF_LINKS, carry)


def attention_nodes(rng: Random, small: bool) -> Pair | None:
    first = Question(grammar.draw_attention(rng, small).source(), "solve", {"alpha": alphas_of(rng, 0.5, small)})
    name, second = other_nodes(rng, first)
    return Pair("attention", name, first, second, ALL_OF_LINKS)


# -- training ------------------------------------------------------------------------------------------------------

TRAINED = ("test_error", "train_error", "train_loss", "estimation_error", "rank", "m", "q")
LEARNED = ("test_error", "estimation_error", "q")


def training_alphas(rng: Random) -> list[float]:
    return sorted({size(rng, 0.1, 5) for _ in range(int(rng.integers(1, 3)))})


def _training_pair(
    rng: Random, name: str, first: Training, second: Training, carry: Callable[[Answer], Answer] = lambda a: a
) -> Pair:
    options = {"alpha": training_alphas(rng)}
    return Pair(
        "Bayes-optimal attention" if first.bayes else "training", name,
        Question(first.source(), "solve", options), Question(second.source(), "solve", options),
        LEARNED if first.bayes else TRAINED, carry, 1e-5, "the spectra are quadratures with relative errors of 1e-6",
    )  # fmt: skip


def _own_loss(model: Training, factor: float = 1.0) -> str:
    beta = 1.0 if model.beta is None else model.beta
    if model.loss == "'cross_entropy'":
        return f"lambda y, h: -{factor!r}*jnp.sum(y*jax.nn.log_softmax({beta}*h, axis=-1))"
    learned = "h" if model.activation == "linear" else f"jax.nn.softmax({beta}*h, axis=-1)"
    return f"lambda y, h: {factor!r}*jnp.sum((y - {learned})**2)"


def own_loss(rng: Random, model: Training) -> Pair | None:
    if model.bayes:
        return None
    return _training_pair(rng, "own loss", model, model.with_(loss=_own_loss(model)))


def scaled_loss(rng: Random, model: Training) -> Pair | None:
    """A loss of one's own times a factor, and the decay with it."""
    if model.bayes:
        return None
    factor = size(rng, 0.1, 10)
    own = model.with_(loss=_own_loss(model)) if rng.random() < 0.5 else model
    other = model.with_(loss=_own_loss(model, factor), decay=factor * model.decay)
    larger = times(factor)
    return _training_pair(
        rng, "scaled loss and decay", own, other,
        lambda answer: answer.mapped(test_error=larger, train_error=larger, train_loss=larger),
    )  # fmt: skip


def own_penalty(rng: Random, model: Training) -> Pair | None:
    if model.bayes:
        return None
    penalty = "lambda t: t**2" if model.parameterization == "full" else f"lambda t: {np.sqrt(model.width).item()!r}*t"
    return _training_pair(rng, "own penalty", model, model.with_(penalty=penalty))


def wall_penalty(rng: Random, model: Training) -> Pair | None:
    """Positive semi-definite matrices, and all of them with a penalty that keeps eigenvalues from being negative."""
    if model.bayes:
        return None
    factorised = model.with_(parameterization="factorized", width=1.0)
    wall = one_of(rng, ["jnp.where(t > 0, t, -1e6*t)", "jnp.maximum(t, -1e5*t)"])
    full = factorised.with_(parameterization="full", penalty=f"lambda t: {wall}")
    return _training_pair(rng, "positive by penalty", factorised, full)


def scaled_target(rng: Random, model: Training) -> Pair | None:
    """The target in other units: with the noise, and the decay or the temperature, in theirs."""
    if model.target[0] == "MarchenkoPastur":
        return None
    s = size(rng, 0.02, 50)
    linear, full = model.activation == "linear", model.parameterization == "full"
    decay = model.decay * ((1.0 if full else s) if linear else (s**-2 if full else 1 / s))
    beta = None if linear else (1.0 if model.beta is None else model.beta) / s
    other = model.with_(target=model.scaled_target(s), noise=s**2 * model.noise, beta=beta, decay=decay)
    maps = {name: times(s**2) for name in ("estimation_error", "m", "q")}
    if linear:
        maps |= {name: times(s**2) for name in ("test_error", "train_error", "train_loss")}
    return _training_pair(rng, "units of the target", model, other, lambda answer: answer.mapped(**maps))


def spectrum_twice(rng: Random, model: Training) -> Pair | None:
    """A discrete law as atoms in another order, as atoms cut in two, or as the spectrum of a matrix."""
    kind, values, weights = model.target
    if kind == "Empirical":
        return _training_pair(
            rng, "Empirical, Atoms", model, model.with_(target=("Atoms", values, (1 / len(values),) * len(values)))
        )
    if kind != "Atoms":
        return None
    order = [int(k) for k in rng.permutation(len(values))]
    share = float(f"{0.4 * weights[-1]:.3g}")
    parts = [*weights[:-1], round(weights[-1] - share, 6)]
    atoms = (*(values[k] for k in order), values[-1]), (*(parts[k] for k in order), share)
    return _training_pair(rng, "atoms in another order", model, model.with_(target=(kind, *atoms)))


def no_observation(rng: Random, model: Training) -> Pair | None:
    """What is the same in the limit: the output observed, and what is subtracted."""
    model = model.with_()
    option = one_of(rng, ["output='sequence'", "centring='empirical'"])
    pair = _training_pair(rng, "same in the limit", model, model)
    lines = [line.replace("asx.AttentionIndex(", f"asx.AttentionIndex({option}, ") for line in pair.second.make]
    return Pair(
        pair.family, pair.transformation, pair.first, pair.second.with_(make=lines), pair.names, slack=pair.slack
    )


def training_grid(rng: Random, model: Training) -> Pair | None:
    alphas = sorted({size(rng, 0.1, 5) for _ in range(3)})
    first = Question(model.source(), "solve", {"alpha": alphas})
    name, second, carry = regridded(rng, first, "alpha")
    family = "Bayes-optimal attention" if model.bayes else "training"
    return Pair(family, name, first, second, LEARNED if model.bayes else TRAINED, carry, 1e-5)


def swept_decay(rng: Random, model: Training) -> Pair | None:
    """The weight decay as a grid of the call, and as the field of the problem."""
    if model.bayes:
        return None
    alphas = training_alphas(rng)
    first = Question(model.source(), "solve", {"alpha": alphas})
    grid = sorted([model.decay, 2 * model.decay])
    second = Question(model.with_(decay=3.0).source(), "solve", {"weight_decay": grid, "alpha": alphas})
    at = [k + (grid.index(model.decay)) * len(alphas) for k in range(len(alphas))]
    unknown = [None] * (2 * len(alphas))

    def carry(answer: Answer) -> Answer:
        full = answer.points([at.index(k) if k in at else 0 for k in range(len(unknown))])
        words = [word if k in at else SKIPPED for k, word in enumerate(full.words)]
        return Answer(full.numbers, full.converged, words, full.refusal, full.error)

    return Pair("training", "decay as a grid", first, second, TRAINED, carry, 1e-5)


def training_nodes(rng: Random, model: Training) -> Pair | None:
    """Other randomisations of the nodes, where the loss is averaged over nodes."""
    if model.bayes or (model.activation == "linear" and model.loss is None):
        return None
    home = "asymptotix.attention_index.theory.training_equations"
    before = ["import importlib", f"equations = importlib.import_module('{home}')",
              "kept, equations.NODE_SCRAMBLINGS = equations.NODE_SCRAMBLINGS, (4, 5, 6, 7)"]  # fmt: skip
    first = Question(model.source(), "solve", {"alpha": training_alphas(rng)})
    second = first.with_(before=before, restore=["equations.NODE_SCRAMBLINGS = kept"])
    return Pair("training", "other seed of nodes", first, second, TRAINED, slack=1e-5)


TRAINING_TURNS: dict[str, Callable[[Random, Training], Pair | None]] = {
    "own loss": own_loss,
    "scaled loss": scaled_loss,
    "own penalty": own_penalty,
    "wall": wall_penalty,
    "scaled target": scaled_target,
    "spectrum twice": spectrum_twice,
    "same in the limit": no_observation,
    "grid": training_grid,
    "swept decay": swept_decay,
    "nodes": training_nodes,
}


# -- attention paths -----------------------------------------------------------------------------------------------

_PREDICT = (
    "mean, variance = answer.predict(attended(test))",
    "numbers.update(mean=(mean.values, 0*mean.values), variance=(variance.values, 0*variance.values))",
)
_EXACT = "both searches end where the gradient is below 1e-8"


def _paths_pair(
    name: str, model: Paths, changes: Sequence[str], carry: Callable[[Answer], Answer] = lambda a: a, order: bool = True
) -> Pair:
    options = {"width": list(model.widths)}
    names = ("mean", "variance", "order_parameter") if order else ("mean", "variance")
    return Pair(
        "paths", name,
        Question(model.source(), "solve", options, after=_PREDICT),
        Question(model.with_(changes=tuple(changes)).source(), "solve", options, after=_PREDICT),
        names, carry, 1e-5, _EXACT,
    )  # fmt: skip


def _on_paths(order: np.ndarray) -> Map:
    def carry(value: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if value.ndim == 3:
            return value[:, order][:, :, order], error[:, order][:, :, order]
        return value[:, order][:, :, :, order], error[:, order][:, :, :, order]

    return carry


def permuted_heads(rng: Random, model: Paths) -> Pair:
    orders = [rng.permutation(heads) for heads in model.heads]
    lines = [f"W = [W[l][order] for l, order in enumerate({[order.tolist() for order in orders]})]"]
    grid = np.arange(int(np.prod(model.heads))).reshape(model.heads)
    order = grid[np.ix_(*orders)].ravel()
    return _paths_pair("permuted heads", model, lines, lambda answer: answer.mapped(order_parameter=_on_paths(order)))


def rotated_features(rng: Random, model: Paths) -> Pair:
    lines = [
        f"R = np.linalg.qr(rng.standard_normal(({model.features}, {model.features})))[0]",
        "inputs, test, W = inputs @ R.T, test @ R.T, [R @ w @ R.T for w in W]",
    ]
    return _paths_pair("rotated features", model, lines)


def padded_features(rng: Random, model: Paths) -> Pair:
    """Features that are zero; the projection's variance, over the number of features, makes up for them."""
    F = model.features
    more = int(rng.integers(1, 4))
    scale = (F + more) / F
    if isinstance(model.prior_variance, tuple):
        variances = (model.prior_variance[0] * scale, *model.prior_variance[1:])
    else:
        variances = (model.prior_variance * scale, *[model.prior_variance] * (len(model.heads) + 1))
    lines = [
        f"inputs, test = (np.pad(x, ((0, 0), (0, 0), (0, {more}))) for x in (inputs, test))",
        f"W, prior_variance = [np.pad(w, ((0, 0), (0, {more}), (0, {more}))) for w in W], {variances}",
    ]
    return _paths_pair("padded features", model, lines, order=False)


def permuted_examples(rng: Random, model: Paths) -> Pair:
    order = rng.permutation(model.examples).tolist()
    return _paths_pair("permuted examples", model, [f"inputs, labels = inputs[{order}], labels[{order}]"])


def permuted_path_tokens(rng: Random, model: Paths) -> Pair:
    order = rng.permutation(model.tokens).tolist()
    lines = [f"inputs, test = inputs[:, {order}], test[:, {order}]"]
    if model.readout != "'mean'":
        lines.append(f"readout = {order.index(0)}")
    return _paths_pair("permuted tokens", model, lines)


def doubled_examples(rng: Random, model: Paths) -> Pair:
    """All examples twice at twice the temperature."""
    lines = ["inputs, labels = np.concatenate([inputs, inputs]), np.concatenate([labels, labels])"]
    return _paths_pair("examples twice", model, [*lines, "temperature = 2*temperature"])


def flipped_labels(rng: Random, model: Paths) -> Pair:
    def carry(answer: Answer) -> Answer:
        return answer.mapped(mean=times(-1.0))

    return _paths_pair("labels times -1", model, ["labels = -labels"], carry)


def scaled_labels(rng: Random, model: Paths) -> Pair:
    """Labels in other units, with the readout's variance and the temperature in theirs."""
    c = size(rng, 1e-3, 1e3)
    one = model.prior_variance
    all_variances = one if isinstance(one, tuple) else (one,) * (len(model.heads) + 2)
    variances = (*all_variances[:-1], all_variances[-1] * c**2)
    lines = [f"labels, temperature, prior_variance = {c!r}*labels, {c!r}**2*temperature, {variances}"]

    def carry(answer: Answer) -> Answer:
        return answer.mapped(mean=times(c), variance=times(c**2))

    return _paths_pair("units of labels", model.with_(labels="real"), lines, carry, order=False)


def doubled_heads(rng: Random, model: Paths) -> Pair:
    """Every head of one layer twice: the same network, since heads are averaged over their root."""
    layer = int(rng.integers(len(model.heads)))
    return _paths_pair("heads twice", model, [f"W[{layer}] = np.concatenate([W[{layer}]]*2)"], order=False)


def given_attention(rng: Random, model: Paths) -> Pair:
    """Attention matrices computed by the network, and given with the data."""
    lines = [
        "computed = asx.AttentionPaths(query_key=W, readout=readout)",
        "attended = lambda x: asx.AttendedInputs(x, computed.attention(x))",
        f"network = lambda: asx.AttentionPaths(heads={model.heads}, readout=readout)",
    ]
    return _paths_pair("attention given", model, lines)


def paths_grid(rng: Random, model: Paths) -> Pair:
    values = sorted(float(w) for w in rng.choice([3, 5, 8, 10, 20, 50, 200, np.inf], 3, replace=False))
    first = Question(model.source(), "solve", {"width": values}, after=_PREDICT)
    name, second, carry = regridded(rng, first, "width")
    return Pair("paths", name, first, second, ("mean", "variance", "order_parameter"), carry, 1e-5, _EXACT)


PATH_TURNS: dict[str, Callable[[Random, Paths], Pair]] = {
    function.__name__: function
    for function in (
        permuted_heads, rotated_features, padded_features, permuted_examples, permuted_path_tokens, doubled_examples,
        flipped_labels, scaled_labels, doubled_heads, given_attention, paths_grid,
    )
}  # fmt: skip


# -- the table -----------------------------------------------------------------------------------------------------

Draw = Callable[[Random, bool], Any]


def _table() -> dict[str, tuple[float, dict[str, Draw]]]:
    """Family -> its share of the cases, and its transformations."""

    def of_link(name: str) -> Draw:
        return lambda rng, small: link_pair(rng, name, small)

    def of_training(turn: Callable[[Random, Training], Pair | None], bayes: bool) -> Draw:
        return lambda rng, small: turn(rng, grammar.draw_training(rng, small, bayes))

    def of_paths(turn: Callable[[Random, Paths], Pair]) -> Draw:
        return lambda rng, small: turn(rng, grammar.draw_paths(rng, small))

    links = {name: of_link(name) for name in LINK_TURNS} | {"grid": link_grid, "nodes": link_nodes}
    attention = {
        "as link": attention_as_link, "activation": attention_activation, "skip": attention_skip,
        "grid": attention_grid, "nodes": attention_nodes,
    }  # fmt: skip
    return {
        "link": (0.5, links),
        "attention": (0.1, attention),
        "training": (0.2, {name: of_training(turn, False) for name, turn in TRAINING_TURNS.items()}),
        "Bayes-optimal attention": (0.05, {name: of_training(turn, True) for name, turn in TRAINING_TURNS.items()}),
        "paths": (0.15, {name: of_paths(turn) for name, turn in PATH_TURNS.items()}),
    }


TABLE = _table()


def pair_of(seed: int, small: bool = False) -> Pair:
    """The case with this number; it does not depend on any other."""
    rng = np.random.default_rng([seed, 1 if small else 0])
    families = list(TABLE)
    shares = np.array([TABLE[family][0] for family in families])
    shares = shares**0.5 if small else shares  # links take longest
    _, draws = TABLE[families[int(rng.choice(len(families), p=shares / shares.sum()))]]
    while True:
        pair = one_of(rng, list(draws.values()))(rng, small)
        if pair is not None:
            return pair
