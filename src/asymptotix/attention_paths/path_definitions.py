"""Definitions of the observables of attention paths, for the theory and for chains that sample the same posterior.

Tiberi et al., arXiv:2405.15926, with the corrections that the modules of ``attention_paths`` state.
"""

from __future__ import annotations

from ..core.definitions.observable import Observable, Table, table

_PAPER = "Tiberi et al., arXiv:2405.15926"

PATH_DEFINITIONS: Table = table(
    Observable(
        "width", "width",
        "Neurons per layer, at fixed number P of examples, P = alpha N; inf is the Gaussian-process limit.",
        symbol="N", reference=f"{_PAPER}, section 2",
    ),
    Observable(
        "temperature", "temperature",
        "Of the posterior: variance of the labels' noise in the likelihood.",
        symbol="T", reference=f"{_PAPER}, eq. (8)",
    ),
    Observable(
        "prior_variance", "prior variance",
        "Of the weights, not the standard deviation.",
        symbol=r"\sigma^2", reference=f"{_PAPER}, eq. (8)",
    ),
    Observable("layers", "layers", "Number of attention layers.", symbol="L"),
    Observable(
        "path_label", "path",
        "What the paths are called: their heads from the first layer to the last, from one. 1-3 passes head 1, then 3.",
        units="",
    ),
    Observable("path_other_label", "path", "The same along path_other.", units=""),
    Observable(
        "order_parameter", "order parameter",
        "Of pairs of attention paths: mean scalar product of their effective weights over the width, under the "
        "posterior. It weighs the paths' kernels, and is s2^{L+1} I in the Gaussian-process limit. The first "
        "layer's head is the slowest index of a path.",
        symbol="U", formula="U = <V^pi . V^pi'>/N", reference=f"{_PAPER}, eqs. (6), (11) and (13)",
    ),
    Observable(
        "order_parameter_err", "error of order parameter",
        "Numerical error of the theory; of a chain the Monte Carlo standard error of its mean.",
        symbol=r"\delta U",
    ),
    Observable(
        "action", "action",
        "Per width: at leading order the posterior of U is exp(-N S/2), and U minimises S.",
        symbol="S", formula="S = S_0(U) + (1/N)[ln det(K + T) + Y^T (K + T)^-1 Y]",
        reference=f"{_PAPER}, eqs. (11) and (32) to (34)",
    ),
    Observable(
        "gradient_norm", "gradient of the action",
        "At the end of the search for the minimum.",
        formula="max |U^(1/2) (dS/dU) U^(1/2)|",
    ),
    # -- predictions
    Observable(
        "test_error", "test error",
        "Squared error of the mean prediction on the examples given, averaged over examples and outputs.",
    ),
    Observable(
        "accuracy", "accuracy",
        "Share of the examples given whose mean prediction has the label's sign, or with several outputs its "
        "largest one in the label's place.",
    ),
    Observable(
        "variance", "variance of the prediction",
        "Of the output without label noise, averaged over the examples.",
    ),
    Observable("head_score", "head score", "Sum of |U| over pairs of paths through a head, over its largest value."),
    # -- chains
    Observable(
        "path_weights_draws", "effective weights of paths",
        "Every draw of w^pi, with f(x) = sum w^pi . xi^pi(x).",
        reference=f"{_PAPER}, eq. (5)",
    ),
    Observable(
        "r_hat", "split R-hat",
        "Largest over the entries of U, from all chains of the point; above 1.01 they have not mixed.",
        symbol=r"\hat R",
    ),
    Observable("effective_samples", "effective samples", "Smallest over the entries of U, of this chain."),
    Observable(
        "divergences", "divergent transitions",
        "Number of them after warm-up; any tells of a region that is not reached.",
    ),
    Observable("step_size", "step size", "Of the leapfrog integrator after warm-up."),
    Observable("leapfrog_steps", "leapfrog steps", "Mean number of them per draw."),
    Observable("cpu_seconds", "CPU time", "Of all threads, without compilation.", units="s"),
    Observable("chain_state", "state of the chain", "What an interrupted chain goes on from."),
)  # fmt: skip
