"""Definitions of the observables of single-head attention: training, Bayes-optimal learning, Adam, message passing.

Boncoraglio et al., arXiv:2509.24914. Every formula is the one that is computed: where the paper prints another formula,
ours is corrected. S_0 is the target, S the learned matrix, d the dimension, Q_0 = Tr(S_0^2)/d.
"""

from __future__ import annotations

from ..core.definitions.observable import Observable, Table, table

_PAPER = "Boncoraglio et al., arXiv:2509.24914"
_BAYES = "Boncoraglio, Troiani, Erba, Zdeborova, Bayes optimal learning of attention-indexed models, 2025"

#: Observables of both training and Bayes-optimal learning.
_SHARED = (
    Observable(
        "alpha", "sample ratio",
        "Samples per squared dimension.",
        symbol=r"\alpha", formula="alpha = n/d^2", reference=f"{_PAPER}, section 2",
    ),
    Observable(
        "dim", "dimension",
        "Embedding dimension of an experiment; theory is its limit of large dimension.",
        symbol="d",
    ),
    Observable(
        "noise", "noise variance",
        "Variance (not standard deviation) of the noise on the diagonal of the target's pre-activation; off the "
        "diagonal it is half of that.",
        symbol=r"\Delta", reference=f"{_PAPER}, eq. (5)",
    ),
    Observable("beta", "inverse temperature", "Of the learner's softmax.", symbol=r"\beta"),
    Observable("target_beta", "inverse temperature of the target", "Of the target's softmax.", symbol=r"\beta_0"),
    Observable("tokens", "tokens", "Length of a sequence.", symbol="T"),
    Observable("kappa0", "rank ratio of the target", "Rank of the target over the dimension.", symbol=r"\kappa_0"),
    Observable("exponent", "exponent", "Of the power law of the target's eigenvalues."),
    Observable("gamma", "exponent of the ranks", "Eigenvalue k of the target goes as k^-gamma.", symbol=r"\gamma"),
    Observable("cutoff", "cutoff", "Largest eigenvalue of the target over its smallest positive one."),
    Observable(
        "mean_square", "mean square of the target",
        "Of its eigenvalues.",
        symbol="Q_0", formula="Q_0 = Tr(S_0^2)/d",
    ),
    Observable(
        "m", "overlap with the target",
        "Of the learned matrix with the target.",
        symbol="m", formula="m = Tr(S S_0)/d", reference=f"{_PAPER}, Claim 1",
    ),
    Observable(
        "q", "squared norm",
        "Of the learned matrix.",
        symbol="q", formula="q = Tr(S^2)/d", reference=f"{_PAPER}, Claim 1",
    ),
    Observable(
        "estimation_error", "estimation error",
        "Squared distance of the learned matrix from the target, computed without cancellation; Q_0 where nothing is "
        "learned.",
        formula="|S - S_0|_F^2/d = Q_0 - 2m + q", reference=f"{_PAPER}, Claim 1",
    ),
    Observable(
        "V", "variance of message passing",
        "Response of the estimate, which state evolution has as Sigma.",
        symbol="V", reference=f"{_PAPER}, eq. (41)",
    ),
    Observable(
        "Lambda", "precision of message passing",
        "Precision of the estimate's field, which state evolution has as Sigmahat (training) or qhat "
        "(Bayes-optimal).",
        symbol=r"\Lambda", reference=f"{_PAPER}, eq. (41)",
    ),
    Observable("eigenvalues", "eigenvalues", "Of the learned matrix S at this size, in ascending order."),
    Observable(
        "outlier_eigenvalue", "learned eigenvalue of a spike",
        "Of the eigenvector of the learned matrix that overlaps most with the eigenspace of a spike of the target.",
    ),
    Observable(
        "outlier_overlap", "overlap with a spike",
        "Squared overlap of that eigenvector with the eigenspace of the spike.",
    ),
    Observable(
        "outlier", "appearance of an outlier",
        "Alpha from which a spike of the target is an eigenvalue of the learned matrix apart from its bulk; inf is "
        "never.",
    ),
    Observable(
        "outlier_until", "disappearance of an outlier",
        "Alpha up to which it is: at vanishing weight decay it may dissolve close to interpolation. inf is never.",
    ),
    Observable("outlier_again", "return of an outlier", "Alpha from which it is visible again; inf is never."),
    Observable(
        "rank", "rank",
        "Share of the eigenvalues of the learned matrix that are not zero: the mass of the law mu_delta above "
        "eps. In an experiment those beyond 0.01 count.",
        reference=f"{_PAPER}, eq. (13)",
    ),
)  # fmt: skip

#: Observables of :class:`RiskMinimization`.
TRAINING_DEFINITIONS: Table = table(
    *_SHARED,
    Observable(
        "weight_decay", "weight decay",
        "lambda in the penalty lambda |W|_F^2 (factorized) or d lambda |S|_F^2 (full) beside the sum of the "
        "errors over samples; 0 is the limit 0+.",
        symbol=r"\lambda", reference=f"{_PAPER}, eqs. (2) and (20)",
    ),
    Observable(
        "width_ratio", "width ratio",
        "Columns of the factorised learner over the dimension.",
        symbol=r"\kappa", formula="kappa = m/d",
    ),
    Observable(
        "test_error", "test error",
        "Squared error of the attention matrix on fresh data with noise of the same law, summed over its T x T "
        "entries; with a loss of another kind that loss.",
        formula="E|y - A|_F^2", reference=f"{_PAPER}, eq. (12)",
    ),
    Observable(
        "excess_error", "excess test error",
        "test_error minus that of the best multiple rho S_0 of the target, to which training tends as data abound: 2L "
        "times estimation_error for linear attention.",
        symbol=r"e - e_\infty", formula="test_error - min_rho E|y - A(rho S_0)|_F^2",
    ),
    Observable(
        "train_error", "training error",
        "The same on the training data, per sample, without the penalty.",
        formula="(1/n) sum |y - A|_F^2", reference=f"{_PAPER}, Claim 1",
    ),
    Observable(
        "train_loss", "training loss",
        "What is minimised, penalty included, over d^2.",
        formula="L/d^2 = alpha train_error + penalty/d^2", reference=f"{_PAPER}, eqs. (2) and (20)",
    ),
    Observable(
        "label_error", "test error of the label",
        "test_error of the T x T attention matrix, whatever the model's output is.",
    ),
    Observable(
        "Sigma", "response",
        "Variance of the proximal map: how far the learner follows the data.",
        symbol=r"\Sigma", reference=f"{_PAPER}, eqs. (43) and (55)",
    ),
    Observable(
        "mhat", "signal of the field",
        "Conjugate to m: strength of the target in what the data say of S.",
        symbol=r"\hat m", reference=f"{_PAPER}, eqs. (43) and (55)",
    ),
    Observable(
        "qhat", "noise of the field",
        "Conjugate to Sigma: variance of the noise in what the data say of S.",
        symbol=r"\hat q", reference=f"{_PAPER}, eqs. (43) and (55)",
    ),
    Observable(
        "Sigmahat", "stiffness of the field",
        "Conjugate to q: curvature of the loss as S sees it.",
        symbol=r"\hat\Sigma", reference=f"{_PAPER}, eqs. (43) and (55)",
    ),
    Observable(
        "delta", "noise over signal of the field",
        "Width of the semicircle that the target's spectrum is convolved with.",
        symbol=r"\delta", formula="delta = sqrt(qhat)/mhat", reference=f"{_PAPER}, eq. (13)",
    ),
    Observable(
        "eps", "cut of the spectrum",
        "Below which an eigenvalue of the convolved spectrum is not learned.",
        symbol=r"\varepsilon", reference=f"{_PAPER}, eq. (13)",
    ),
    Observable(
        "scale", "scale of the spectrum",
        "The learned eigenvalues are scale (x - eps)_+ with x of the convolved law mu_delta, or scale x of the "
        "full parameterisation.",
        reference=f"{_PAPER}, eq. (13)",
    ),
    Observable(
        "potential", "variational potential",
        "Phi, stationary at the fixed point (a saddle), where it is the training loss L/d^2; of several fixed "
        "points the lowest is the minimiser's.",
        symbol=r"\Phi", reference=f"{_PAPER}, eq. (7)",
    ),
    Observable(
        "replicon", "replicon",
        "Stability of replica symmetry: below 1 it is stable; from 1 on the theory is not valid. Jumps of the "
        "proximal map are not counted. nan at vanishing weight decay; inf where a narrow learner cuts a bulk in two.",
        reference=f"{_PAPER}, eq. (10)",
    ),
    Observable(
        "jump_weight", "weight of jumps",
        "Share of the data on which the proximal map jumps between two minima; above 1e-3 the numbers count as "
        "unproven.",
    ),
    Observable(
        "interpolation", "interpolation threshold",
        "Largest alpha at which all data are fitted as the weight decay vanishes; without noise, where they are at "
        "any alpha, the one from which on the interpolator is unique.",
        symbol=r"\alpha_{\rm interp}", reference=f"{_PAPER}, eq. (16)",
    ),
    Observable(
        "exact_recovery", "exact-recovery threshold",
        "Smallest alpha at which training without noise finds the target as the weight decay vanishes; inf with "
        "noise.",
        symbol=r"\alpha_{\rm strong}", reference=f"{_PAPER}, eqs. (17) and (18)",
    ),
    Observable(
        "gradient_norm", "gradient",
        "Norm of the gradient of L/d^2 times that of the weights: the change of L/d^2 per relative change of the "
        "weights.",
    ),
    Observable("loss_trace", "training loss", "L/d^2 before every step."),
)  # fmt: skip

#: Observables of :class:`BayesOptimal` with an :class:`AttentionIndex`.
BAYES_DEFINITIONS: Table = table(
    *_SHARED,
    Observable("side_information", "side information", "None for this model."),
    Observable(
        "qhat", "precision of the field",
        "The posterior of S is that of S_0 + GOE/sqrt(qhat); inf where recovery is exact.",
        symbol=r"\hat q", formula="qhat = 2 alpha E|f|^2", reference=_BAYES,
    ),
    Observable(
        "test_error", "test error",
        "Squared error of the posterior mean of the label on fresh data, summed over its entries.",
        formula="E|sigma(z_0)|^2 - E<sigma(z_0), sigma(z_0')>", reference=_BAYES,
    ),
    Observable(
        "exact_recovery", "exact-recovery threshold",
        "Smallest alpha at which the target is recovered without error; inf with noise and for hardmax.",
        symbol=r"\alpha_{\rm BO}", reference=_BAYES,
    ),
)  # fmt: skip
