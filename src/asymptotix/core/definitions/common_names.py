"""Definitions of the variables and coordinates whose names several theories and experiments share.

A problem can replace them by more precise ones, with scaling and references (:meth:`Problem.observables`).
"""

from __future__ import annotations

from .observable import Observable, Table, table

COMMON: Table = table(
    # -- status of a point, and labels of its entries
    Observable("status", "status", "How the point ended, in words.", units=""),
    Observable("status_code", "status code", "How the point ended, as a word to decide on.", units=""),
    Observable("converged", "converged", "Whether the stated tolerance was met, and checked."),
    Observable("index_label", "index", "What the rows of the weights are called, along index.", units=""),
    Observable("index_other_label", "index", "What the rows of the teacher are called, along index_other.", units=""),
    # -- controls
    Observable(
        "alpha", "sample ratio",
        "Number of samples over the power of the dimension that they are counted in.",
        symbol=r"\alpha",
    ),
    Observable(
        "dim", "dimension",
        "Dimension of the data in an experiment; theory is its limit of large dimension.",
        symbol="D",
    ),
    Observable("seed", "seed", "Seed of a run: its data, its start and its draws follow from it."),
    Observable("iteration", "iteration", "Counted from one, the first thing that an algorithm returns.", symbol="t"),
    Observable("width", "width", "Number of neurons per layer.", symbol="N"),
    Observable("weight_decay", "weight decay", "Strength of the penalty on the weights.", symbol=r"\lambda"),
    Observable("noise", "noise variance", "Variance of the noise, not its standard deviation.", symbol=r"\Delta"),
    Observable("temperature", "temperature", "Variance of the labels' noise in the likelihood.", symbol="T"),
    Observable("side_information", "side information", "Overlap of the given noisy copy of W with W."),
    Observable("skip", "skip strength", "Strength of the skip connections.", symbol="c"),
    Observable("tokens", "tokens", "Length of a sequence."),
    Observable("layers", "layers", "Depth of the network.", symbol="L"),
    Observable("heads", "heads", "Number of heads per layer.", symbol="H"),
    # -- what is learned
    Observable("overlap", "overlap", "Overlap of the estimate with the teacher, per pair of rows.", symbol="Q"),
    Observable("order_parameter", "order parameter", "The statistics that determine all observables.", symbol="U"),
    Observable(
        "free_entropy", "free entropy",
        "Log of the evidence per dimension; its maximum is the posterior.",
        symbol=r"\Phi",
    ),
    Observable("rank", "rank", "Of the learned matrix, as a share of the dimension."),
    # -- errors
    Observable("test_error", "test error", "Mean squared error of the estimator's own prediction on fresh data."),
    Observable("plugin_error", "plug-in error", "Mean squared error on fresh data of the point estimate's output."),
    Observable("train_error", "training error", "Mean squared error per sample on the training data."),
    Observable("train_loss", "training loss", "What is minimised, penalty included."),
    Observable("estimation_error", "estimation error", "Squared distance of the estimate from the truth."),
    Observable("accuracy", "accuracy", "Share of fresh examples that are classified rightly."),
    Observable("eigenvalues", "eigenvalues", "Of the learned matrix, in ascending order."),
    # -- thresholds
    Observable(
        "weak_recovery", "weak-recovery threshold",
        "Smallest alpha at which anything is learned, per index.",
        symbol=r"\alpha",
    ),
    Observable(
        "exact_recovery", "exact-recovery threshold",
        "Smallest alpha at which the truth is recovered without error; inf where that never is.",
        symbol=r"\alpha",
    ),
)  # fmt: skip
