"""Definitions of all observables of Bayes-optimal learning of sequence multi-index models, in theory and algorithms.

The observables are those of Troiani et al., arXiv:2502.00901. Every entry has the formula that is computed; if the
printed formula differs, the entry has the corrected one.
"""

from __future__ import annotations

from ..core.definitions.observable import Observable, Table, table

_PAPER = "Troiani et al., arXiv:2502.00901"

OVERLAP_DEFINITIONS: Table = table(
    # -- controls and fields
    Observable(
        "alpha", "sample ratio",
        "Samples per dimension, n = alpha D; of several heads D is that of one block.",
        symbol=r"\alpha", formula="alpha = n/D", reference=f"{_PAPER}, section 2",
    ),
    Observable(
        "noise", "noise variance",
        "Variance (not standard deviation) of the Gaussian noise on every output.",
        symbol=r"\Delta", formula="y = g(Z) + sqrt(noise) N(0, 1)",
    ),
    Observable(
        "side_information", "side information",
        "Overlap l of side information with the teacher's weights; 0 is none.",
        symbol="l", formula="S = sqrt(l) W* + sqrt(1-l) N(0, 1)", reference=f"{_PAPER}, eq. (104)",
    ),
    Observable(
        "skip", "skip strength",
        "Strength of the skip connection of all layers but the last.",
        symbol="c", reference=f"{_PAPER}, eq. (3)",
    ),
    Observable(
        "beta", "skip strength per layer",
        "Strength of the skip connections over the depth, as it grows.",
        symbol=r"\beta", reference=f"{_PAPER}, eq. (37)",
    ),
    Observable("tokens", "tokens", "Length of a sequence.", symbol="M"),
    Observable("rank", "rank of a layer", "Number of rows of a layer's weights.", symbol="P_l"),
    Observable("indices", "indices", "Number of rows of the weights, in all.", symbol="P"),
    # -- the order parameter and observables computed from it
    Observable(
        "overlap", "overlap",
        "Overlap of the posterior mean of the weights W with the teacher's W*, per coordinate: 0 where nothing is "
        "learned, the identity at exact recovery; the diagonal is a squared cosine. Signs and rotations that the "
        "output does not determine are aligned with the teacher. In a run an index that is not learned has an "
        "overlap of about 1/D in place of 0; compare subtracts it.",
        symbol="Q", formula="Q = E[W W*^T]/D", reference=f"{_PAPER}, Lemma 2.2, eq. (14)",
    ),
    Observable(
        "test_error", "test error",
        "Squared error, summed over the entries of the output, of the posterior mean of the output on fresh data; "
        "noise on the fresh output is not counted. Of SGD it is that of the trained network's own output.",
        formula="E|g(Z)|^2 - E<g(Z), g(Z')> with Z, Z' of cross-covariance Q", reference=f"{_PAPER}, eq. (11)",
    ),
    Observable(
        "plugin_error", "plug-in error",
        "Squared error, summed over the entries of the output, of the output at the posterior mean of the "
        "weights; it is never below test_error.",
        formula="E|g(Z) - g(omega)|^2 with omega ~ N(0, Q)", reference=f"{_PAPER}, Figure 2",
    ),
    Observable(
        "estimation_error", "estimation error",
        "Of the Gram matrix of the weights: P where nothing is learned, 0 at exact recovery.",
        formula="|W*^T W* - E[W^T W]|_F^2/D^2 = P - |Q|_F^2", reference=f"{_PAPER}, below eq. (11)",
    ),
    Observable(
        "free_entropy", "free entropy",
        "Log of the evidence per dimension D, in nats, at this fixed point; of several fixed points the largest "
        "one is the posterior's. inf where recovery is exact.",
        symbol=r"\Phi", formula="Phi = (log det(I-Q) + Tr Q)/2 + alpha E log Z_out",
        reference=f"{_PAPER}, eqs. (10) and (150)",
    ),
    # -- thresholds
    Observable(
        "weak_recovery", "weak-recovery threshold",
        "Smallest alpha at which this index has an overlap from the uninformed start: 0 where any number of "
        "samples will do, inf where it is never learned.",
        symbol=r"\alpha_{\rm weak}", reference=f"{_PAPER}, Theorem 2.3, eqs. (15) and (16)",
    ),
    Observable(
        "staircase", "step of the staircase",
        "alpha of the successive instabilities from nothing, in the order in which directions are learned.",
        symbol=r"\alpha_k", reference=f"{_PAPER}, Theorem 2.3",
    ),
    Observable(
        "direction", "direction of a step",
        "Along which the overlap appears at a step of the staircase: a positive semi-definite matrix of Frobenius "
        "norm 1.",
        reference=f"{_PAPER}, Theorem 2.3",
    ),
    Observable(
        "exact_recovery", "exact-recovery threshold",
        "Smallest alpha at which the dynamics from the uninformed start ends at full overlap in every direction "
        "that the output shows; inf with noise.",
        symbol=r"\alpha_{\rm exact}",
    ),
    Observable(
        "exact_recovery_informed", "stability of exact recovery",
        "alpha above which full overlap is stable: the iteration that starts there stays there.",
        symbol=r"\alpha_{\rm IT}", formula="P/r with r the number of independent outputs",
    ),
    Observable(
        "exact_recovery_gap", "gap before exact recovery (flag)",
        "A flag, no width: 1.0 where exact_recovery exceeds exact_recovery_informed by more than three of its "
        "errors, so that in between recovery is possible but not from the uninformed start; 0.0 otherwise.",
    ),
    # -- message passing
    Observable(
        "variance", "posterior variance",
        "Diagonal of the covariance V of the weights in the run, per index; on the Nishimori line it is 1 - Q.",
        symbol="V", reference=f"{_PAPER}, Algorithm 1",
    ),
    Observable(
        "empirical_variance", "posterior variance by the data",
        "What the variance would be by the data's own A, where that of state evolution is prescribed, and the "
        "other way round.",
        symbol="V", reference=f"{_PAPER}, Algorithm 1",
    ),
    Observable(
        "stage_trace", "stage",
        "Number of the stage that an iteration belongs to, from 0: directions enter one after the other.",
    ),
    Observable(
        "eigenvalue", "eigenvalue of the spectral start",
        "Top eigenvalue of the matrix whose eigenvector an index starts from; nan where there is no spectral "
        "start.",
        reference=f"{_PAPER}, Theorem 2.3",
    ),
    Observable(
        "eigenvalue_gap", "gap of the spectral start",
        "Relative distance of that eigenvalue from the next; below about 0.03 the eigenvector may be noise.",
    ),
    Observable(
        "spectral_overlap", "overlap of the spectral start",
        "Diagonal overlap of an index after its spectral start, before message passing.",
    ),
    # -- gradient descent
    Observable(
        "train_error", "training error",
        "Squared error per sample, summed over the entries of the output, over the last epoch, each batch before "
        "its first step.",
    ),
    Observable(
        "cosine", "cosine",
        "Between a row of the trained weights and the teacher's; overlap has its square.",
        formula="|w.w*|/(|w| |w*|)",
    ),
    Observable(
        "first_passage", "first passage",
        "Batches until the cosine of an index first exceeds 1/2; nan if it never does.",
    ),
    Observable(
        "loss_trace", "loss",
        "Squared error per sample of a batch before its first step; geometrically spaced.",
    ),
    Observable("step_trace", "gradient steps", "Gradient steps done by the time of every record of the traces."),
)  # fmt: skip
