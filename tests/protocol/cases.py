"""The table: one small case for every public problem, model, target and algorithm, and what each of them refuses.

What is added to the public names is added here: `CASES` for what can be solved or run, `WRONG` for what its fields
refuse. The questions that every case is asked are in `questions.py`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import asymptotix as asx
from asymptotix.core.specification import Specification

SEEDS = (0, 3)
NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, small enough to be solved or run many times, and what its result promises.

    Parameters
    ----------
    controls
        The problem's own control with its values.
    fields
        Numeric field of the problem or of its model -> the value that it has, and another.
    dimensions
        Observable -> its own dimensions, for some observables of the result.
    algorithm, dim
        For an experiment.
    without_error
        Observables of a theory that state no numerical error.
    history
        How much a number may depend on the points solved before it in the same call, beyond its stated error and
        relative to its size; ``history_of`` for single observables.
    rounding
        How much a run may depend, relative to its numbers, on those that are computed in the same batch.
    of_the_call
        Observables that are of all runs of a call together, or of the clock.
    """

    problem: asx.Problem
    controls: Mapping[str, Sequence[float]]
    fields: Mapping[str, tuple[float, float]]
    dimensions: Mapping[str, tuple[str, ...]]
    algorithm: asx.Algorithm | None = None
    dim: int | None = None
    tolerance: float = 1e-3
    without_error: tuple[str, ...] = ()
    history: float = 1e-9
    history_of: Mapping[str, float] = field(default_factory=dict)
    rounding: float = 0.0
    of_the_call: tuple[str, ...] = ()

    @property
    def control(self) -> str:
        return next(iter(self.controls))

    @property
    def is_theory(self) -> bool:
        return self.algorithm is None

    @property
    def has_function(self) -> bool:
        """Whether the model holds a function, which no file can."""
        return callable(getattr(getattr(self.problem, "model", None), "link", None))

    def run(self, *, progress: Any = False, resume: Any = None, seeds: Any = SEEDS, **controls: Any) -> asx.Result:
        """Solve or simulate, with some controls other than those of the case."""
        given: dict[str, Any] = {**self.controls, **controls}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asx.ConvergenceWarning)  # a short run need not converge
            if self.algorithm is None:
                options: dict[str, Any] = {"tolerance": self.tolerance}
                return asx.solve(self.problem, progress=progress, resume=resume, **{**options, **given})
            size = {"dim": self.dim} if self.dim is not None else {}
            return asx.simulate(
                self.problem, self.algorithm, progress=progress, resume=resume, seeds=seeds, **{**size, **given}
            )

    @cached_property
    def whole(self) -> asx.Result:
        """The result of the case itself, computed once."""
        return self.run()


def total(Z):
    """A link of one's own, affine: its channel is a closed form."""
    return Z.sum()


def sign(z):
    """A link of one's own with discrete outputs."""
    return jnp.sign(z[0])


OVERLAP = {"overlap": ("index", "index_other"), "test_error": (), "free_entropy": ()}
TRAINED = {"test_error": (), "train_loss": (), "rank": (), "q": ()}
LEARNED_PATHS = {"order_parameter": ("path", "path_other"), "action": ()}
ALPHA = {"alpha": (0.3, 0.4)}
NOISE = {"noise": (0.5, 0.7)}

ONE_LAYER = asx.DeepAttention(layers=1, tokens=2)
SIDE = asx.BayesOptimal(ONE_LAYER, side_information=0.1)


def trained(target: asx.Target, target_fields: Mapping[str, tuple[float, float]] | None = None) -> Case:
    """Training with linear activation: the cheapest theory of a target."""
    task = asx.AttentionIndex(target=target, noise=0.5, activation="linear")
    return Case(
        asx.RiskMinimization(task, weight_decay=0.05), {"alpha": (0.5, 1.0)},
        {"weight_decay": (0.05, 0.1), **NOISE, **(target_fields or {})}, TRAINED,
        without_error=("jump_weight",), history=0.0,
    )  # fmt: skip


def _paths() -> tuple[asx.PathPosterior, asx.PathPosterior]:
    rng = np.random.default_rng(0)
    network = asx.AttentionPaths(query_key=[0.3 * rng.standard_normal((2, 4, 4))])
    tokens, labels = rng.standard_normal((6, 3, 4)), np.sign(rng.standard_normal(6))
    given = asx.AttendedInputs(tokens, network.attention(tokens))
    return (
        asx.PathPosterior(network, tokens, labels, temperature=0.1),
        asx.PathPosterior(asx.AttentionPaths(heads=(2,)), given, labels, temperature=0.1),
    )


PATHS, ATTENDED = _paths()
TRAINING = asx.RiskMinimization(asx.AttentionIndex(noise=0.5, activation="linear"), weight_decay=0.05)
#: The order parameter of attention paths is found where the gradient falls below a bound; how far below is chance.
AT_A_MINIMUM: dict[str, Any] = {
    "without_error": ("gradient_norm",),
    "history_of": {"gradient_norm": 1e3, "order_parameter_err": 1e-6, "action_err": 1e-12},
}

CASES: dict[str, Case] = {
    # -- theories ----------------------------------------------------------------------------------------------
    "one layer": Case(
        asx.BayesOptimal(ONE_LAYER), ALPHA, {"side_information": (0.0, 0.1), "skip": (1.0, 2.0)}, OVERLAP
    ),
    "infinite depth": Case(
        asx.BayesOptimal(asx.InfiniteDepthAttention(tokens=2, beta=2.0)), ALPHA,
        {"side_information": (0.0, 0.1), "beta": (2.0, 3.0)}, OVERLAP,
    ),
    "sequence index": Case(
        asx.BayesOptimal(asx.SequenceIndex(total, indices=1, tokens=2, noise=0.5)), {"alpha": (0.5, 1.0)}, NOISE,
        OVERLAP, tolerance=5e-2,
    ),
    # The free entropy depends on the way to the fixed point by more than the error that it states: 7e-5, stated 6e-5.
    "multi index": Case(
        asx.BayesOptimal(asx.MultiIndex(sign, indices=1)), {"alpha": (0.5, 1.0)}, {"side_information": (0.0, 0.1)},
        OVERLAP, tolerance=5e-2, history_of={"free_entropy": 1e-3},
    ),
    "Bayes-optimal attention": Case(
        asx.BayesOptimal(asx.AttentionIndex(noise=0.5)), {"alpha": (0.5, 1.0)}, {**NOISE, "kappa0": (0.5, 0.6)},
        {"test_error": (), "estimation_error": (), "q": ()},
    ),
    "training": trained(asx.MarchenkoPastur(0.5), {"kappa0": (0.5, 0.6)}),
    "training, atoms": trained(asx.Atoms((0.0, 1.0, 2.0), (0.4, 0.4, 0.2))),
    "training, power law": trained(asx.PowerLaw(3.0), {"exponent": (3.0, 2.5)}),
    "training, spiked": trained(asx.Spiked(asx.MarchenkoPastur(0.5), (6.0,)), {"kappa0": (0.5, 0.6)}),
    "training, ranked power law": trained(asx.RankedPowerLaw(1.0, 50), {"gamma": (1.0, 1.5)}),
    "training, empirical": trained(asx.Empirical(np.linspace(0.0, 2.0, 5))),
    "paths": Case(
        PATHS, {"width": (10.0, 20.0)}, {"temperature": (0.1, 0.2), "prior_variance": (1.0, 2.0)}, LEARNED_PATHS,
        **AT_A_MINIMUM,
    ),
    "paths, given attention": Case(
        ATTENDED, {"width": (10.0, np.inf)}, {"temperature": (0.1, 0.2)}, LEARNED_PATHS, **AT_A_MINIMUM
    ),
    # -- experiments -------------------------------------------------------------------------------------------
    # The seeds of GAMP and SGD run together in single precision: with other seeds beside it a product may sum in
    # another order. The statuses hold such numbers, and are then compared in their words. All others run one by one.
    "GAMP": Case(
        SIDE, {"alpha": (0.5, 0.8)}, {"side_information": (0.1, 0.2)},
        {"overlap": ("index", "index_other"), "overlap_trace": ("iteration", "index", "index_other"), "test_error": ()},
        asx.GAMP(iterations=4), dim=30, rounding=1e-5,
    ),
    "RelaxedBP": Case(
        SIDE, {"alpha": (0.5, 0.8)}, {"side_information": (0.1, 0.2)},
        {"overlap": ("index", "index_other"), "variance": ("index",), "test_error": ()},
        asx.RelaxedBP(iterations=2), dim=12,
    ),
    "SGD": Case(
        asx.BayesOptimal(ONE_LAYER), {"alpha": (1.0, 2.0)}, {"skip": (1.0, 2.0)},
        {"overlap": ("index", "index_other"), "cosine": ("index",), "loss_trace": ("iteration",), "test_error": ()},
        asx.SGD(epochs=2, batch=20), dim=20, rounding=1e-5,
    ),
    "Adam": Case(
        TRAINING, {"alpha": (0.5, 1.0)}, {"weight_decay": (0.05, 0.1)},
        {"eigenvalues": ("eigenvalue",), "loss_trace": ("iteration",), "test_error": ()},
        asx.Adam(steps=10), dim=8,
    ),
    "MatrixAMP": Case(
        TRAINING, {"alpha": (0.5, 1.0)}, {"weight_decay": (0.05, 0.1), **NOISE},
        {"eigenvalues": ("eigenvalue",), "q_trace": ("iteration",), "test_error": ()},
        asx.MatrixAMP(iterations=3), dim=10,
    ),
    "NUTS": Case(
        PATHS, {"width": (5.0,)}, {"temperature": (0.1, 0.2)},
        {"order_parameter": ("path", "path_other"), "order_parameter_draws": ("draw", "path", "path_other"),
         "r_hat": ()},
        asx.NUTS(draws=8, warmup=20), of_the_call=("r_hat", "cpu_seconds"),
    ),
}  # fmt: skip

THEORIES = {name: case for name, case in CASES.items() if case.is_theory}
EXPERIMENTS = {name: case for name, case in CASES.items() if not case.is_theory}

_POSITIVE = (-1.0, 0.0, NAN, "one", None)
_NON_NEGATIVE = (-1.0, NAN, "one")
_COUNT = (0, -2, 2.5, NAN, "two")
_LARGE_COUNT = (*_COUNT, np.inf, 10**30)
_FINITE = (*_POSITIVE, np.inf, 10**400)
_FINITE_OR_ZERO = (*_NON_NEGATIVE, np.inf, 10**400)
_TOLERANCE = (*_FINITE, 1.0)
_SHARE = (-0.5, 1.5, NAN, "half")


def _misshapen(Z):
    return Z @ np.ones((7, 7))


#: What the fields of every public description refuse, with a message that names the field.
WRONG: dict[type, Mapping[str, Sequence[Any]]] = {
    asx.DeepAttention: {
        "layers": _COUNT, "tokens": _COUNT, "rank": (0, (1, 1, 1)), "skip": _NON_NEGATIVE, "activation": ("relu",),
        "heads": _COUNT, "output": ("tokens",), "tied": (1,),
    },
    asx.InfiniteDepthAttention: {"tokens": _COUNT, "beta": _POSITIVE, "rank": _COUNT, "limit": ("none",)},
    asx.SequenceIndex: {"link": (3.0, _misshapen), "indices": _COUNT, "tokens": _COUNT, "noise": _NON_NEGATIVE},
    asx.MultiIndex: {"link": (3.0, _misshapen), "indices": _COUNT, "noise": _NON_NEGATIVE},
    asx.AttentionIndex: {
        "tokens": _COUNT, "target": (0.5, None), "noise": _NON_NEGATIVE, "beta": _POSITIVE, "activation": ("relu",),
        "output": ("tokens",), "centring": ("mean",),
    },
    asx.MarchenkoPastur: {"kappa0": (*_POSITIVE, np.inf)},
    asx.Atoms: {
        "values": ((-1.0, 1.0, 2.0), (0.0, 0.0, 0.0), (NAN, 1.0, 2.0), "three", [[1.0, 2.0, 3.0]]),
        "weights": ((0.5, 0.5), (0.5, 0.6, -0.1), (0.5, 0.5, 0.5), "equal"),
    },
    asx.PowerLaw: {
        "exponent": (*_NON_NEGATIVE, np.inf), "cutoff": (*_POSITIVE, 0.5), "kappa0": (*_POSITIVE, 1.5),
        "mean_square": _POSITIVE,
    },
    asx.RankedPowerLaw: {
        "gamma": _FINITE, "dim": (*_LARGE_COUNT, 1), "rank": (*_COUNT, 10**30), "mean_square": _FINITE,
    },
    asx.Empirical: {"spectrum": ((-1.0, 2.0), (0.0,), (NAN, 1.0), (), "many")},
    asx.Spiked: {
        "bulk": (0.5, "zero"), "spikes": ((), (-1.0,), (0.0, 6.0), (NAN,), "six", (1.0,)), "dim": _COUNT,
    },
    asx.AttentionPaths: {
        "heads": (0, (2, 0), (3,), 10**30, (2,) * 5000),
        "query_key": ([np.zeros((2, 4))], [np.full((2, 4, 4), NAN)], 3.0), "readout": ("last", 1.5),
    },
    asx.AttendedInputs: {
        "tokens": (np.zeros((6, 3)), np.full((6, 3, 4), NAN), "tokens"),
        "attention": ([np.zeros((6, 2, 3, 2))], [np.full((6, 2, 3, 3), 0.5)], [np.full((6, 2, 3, 3), NAN)]),
    },
    asx.BayesOptimal: {"model": (None, "attention", asx.GAMP()), "side_information": (-0.1, 1.0, NAN, "some")},
    asx.RiskMinimization: {
        "model": (None, ONE_LAYER), "weight_decay": _NON_NEGATIVE, "width_ratio": _POSITIVE,
        "parameterization": ("half",), "loss": ("absolute", 1.0), "penalty": ("ridge", 1.0),
    },
    asx.PathPosterior: {
        "network": (None, ONE_LAYER), "inputs": (np.zeros((6, 3)), "tokens"),
        "labels": (np.ones(5), np.full(6, NAN), np.ones((6, 1, 1)), "labels"), "temperature": _FINITE,
        "prior_variance": (-1.0, NAN, (1.0, 1.0), "one", np.inf, 10**400),
        "width_ratios": ((1.0,), (1.0, -1.0), (NAN, 1.0), (np.inf, 1.0)),
    },
    asx.GAMP: {
        "start": ("warm",), "variances": ("none",), "iterations": _LARGE_COUNT, "damping": (*_FINITE, 1.5),
        "jitter": _FINITE_OR_ZERO, "start_scale": _FINITE, "stream": (1,), "tolerance": _TOLERANCE,
    },
    asx.RelaxedBP: {"iterations": _LARGE_COUNT, "variances": ("none",), "tolerance": _TOLERANCE},
    asx.SGD: {
        "epochs": _LARGE_COUNT, "learning_rate": _FINITE, "weight_decay": _FINITE_OR_ZERO, "batch": _LARGE_COUNT,
        "reuse": _LARGE_COUNT, "online": (1,), "start_scale": _FINITE, "records": _LARGE_COUNT, "tolerance": _TOLERANCE,
    },
    asx.Adam: {"steps": _LARGE_COUNT, "learning_rate": _FINITE, "chunk": _LARGE_COUNT, "tolerance": _TOLERANCE},
    asx.MatrixAMP: {
        "iterations": _LARGE_COUNT, "sensing": ("none",), "damping": (*_FINITE, 1.5), "tolerance": _TOLERANCE,
    },
    asx.NUTS: {
        "space": ("none",), "draws": _LARGE_COUNT, "warmup": _LARGE_COUNT, "thin": _LARGE_COUNT,
        "target_accept": (*_SHARE, 1.0, np.inf),
    },
}  # fmt: skip


def specifications_in(described: Specification) -> Iterator[Specification]:
    """A description and all that are inside it."""
    yield described
    for part in dataclasses.fields(described):  # type: ignore[arg-type]
        if isinstance(value := getattr(described, part.name), Specification):
            yield from specifications_in(value)


def examples(cases: Mapping[str, Case] = CASES) -> dict[type, Specification]:
    """One object of every class that occurs in the cases."""
    found: dict[type, Specification] = {}
    for case in cases.values():
        for whole in (case.problem, case.algorithm):
            for part in specifications_in(whole) if whole is not None else ():
                found.setdefault(type(part), part)
    return found


#: Cases whose programs take longest to compile: asked among the slow tests.
LONG_TO_COMPILE = ("sequence index", "multi index", "GAMP", "NUTS", "Adam", "SGD")


def asked(cases: Mapping[str, Case]) -> list[Any]:
    """The names of cases as parameters of a test."""
    return [pytest.param(name, marks=pytest.mark.slow if name in LONG_TO_COMPILE else ()) for name in cases]


def public_specifications(module: ModuleType = asx) -> dict[str, type]:
    """Public classes of descriptions that can be built: problems, models, targets, algorithms."""
    named = {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in named.items()
        if isinstance(value, type) and issubclass(value, Specification) and dataclasses.is_dataclass(value)
    }
