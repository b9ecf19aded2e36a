"""Exact high-dimensional theory of attention: learning curves, thresholds and the algorithms that match them.

>>> import numpy as np
>>> import asymptotix as asx
>>> problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
>>> theory = asx.solve(problem, alpha=np.linspace(0.05, 1.6, 32))       # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import tasks
    from .attention_index.amp import MatrixAMP
    from .attention_index.model import AttentionIndex
    from .attention_index.risk import RiskMinimization
    from .attention_index.targets import Atoms, Empirical, MarchenkoPastur, PowerLaw, Target
    from .attention_index.training import Adam
    from .attention_paths.heads import empirical_order_parameter, head_scores
    from .attention_paths.network import AttendedInputs, AttentionPaths
    from .attention_paths.posterior import PathPosterior
    from .attention_paths.pruning import prune
    from .attention_paths.sampling import NUTS
    from .attention_paths.weights import Weights
    from .bayes_optimal import BayesOptimal
    from .core.compare import Comparison, compare
    from .core.gradient import gradient, optimum
    from .core.problem import Algorithm, Outcome, Problem
    from .core.result import ConvergenceWarning, Result, load
    from .core.verbs import simulate, solve, thresholds
    from .sequence_index.gamp import GAMP
    from .sequence_index.infinite_depth import InfiniteDepthAttention
    from .sequence_index.link_model import MultiIndex, SequenceIndex
    from .sequence_index.model import DeepAttention
    from .sequence_index.relaxed_bp import RelaxedBP
    from .sequence_index.sgd import SGD

#: Public name -> module that holds it. Imported on first use: `import asymptotix` does not wait for JAX.
_HOME = {
    "solve": "core.verbs",
    "simulate": "core.verbs",
    "thresholds": "core.verbs",
    "compare": "core.compare",
    "Comparison": "core.compare",
    "load": "core.result",
    "Result": "core.result",
    "ConvergenceWarning": "core.result",
    "Problem": "core.problem",
    "Algorithm": "core.problem",
    "Outcome": "core.problem",
    "BayesOptimal": "bayes_optimal",
    "DeepAttention": "sequence_index.model",
    "GAMP": "sequence_index.gamp",
    "InfiniteDepthAttention": "sequence_index.infinite_depth",
    "MultiIndex": "sequence_index.link_model",
    "SequenceIndex": "sequence_index.link_model",
    "RelaxedBP": "sequence_index.relaxed_bp",
    "SGD": "sequence_index.sgd",
    "AttentionIndex": "attention_index.model",
    "RiskMinimization": "attention_index.risk",
    "Target": "attention_index.targets",
    "MarchenkoPastur": "attention_index.targets",
    "Atoms": "attention_index.targets",
    "PowerLaw": "attention_index.targets",
    "Empirical": "attention_index.targets",
    "Adam": "attention_index.training",
    "MatrixAMP": "attention_index.amp",
    "AttentionPaths": "attention_paths.network",
    "AttendedInputs": "attention_paths.network",
    "PathPosterior": "attention_paths.posterior",
    "NUTS": "attention_paths.sampling",
    "Weights": "attention_paths.weights",
    "empirical_order_parameter": "attention_paths.heads",
    "head_scores": "attention_paths.heads",
    "prune": "attention_paths.pruning",
    "gradient": "core.gradient",
    "optimum": "core.gradient",
}

__all__ = [
    "GAMP",
    "NUTS",
    "SGD",
    "Adam",
    "Algorithm",
    "Atoms",
    "AttendedInputs",
    "AttentionIndex",
    "AttentionPaths",
    "BayesOptimal",
    "Comparison",
    "ConvergenceWarning",
    "DeepAttention",
    "Empirical",
    "InfiniteDepthAttention",
    "MarchenkoPastur",
    "MatrixAMP",
    "MultiIndex",
    "Outcome",
    "PathPosterior",
    "PowerLaw",
    "Problem",
    "RelaxedBP",
    "Result",
    "RiskMinimization",
    "SequenceIndex",
    "Target",
    "Weights",
    "__version__",
    "compare",
    "empirical_order_parameter",
    "gradient",
    "head_scores",
    "load",
    "optimum",
    "prune",
    "simulate",
    "solve",
    "tasks",
    "thresholds",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "tasks":
        return import_module(".tasks", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'asymptotix' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
