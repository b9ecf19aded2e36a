"""Attention-indexed data: a teacher's attention matrix on Gaussian tokens.

Boncoraglio et al., arXiv:2509.24914, eqs. (4)-(6). The trace that h(S_0) subtracts is the trace of S_0 itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.specification import Specification
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory
from .targets.marchenko_pastur import MarchenkoPastur
from .targets.target import Target

ACTIVATIONS = ("softmax", "hardmax", "linear")
OUTPUTS = ("label", "sequence")
CENTRINGS = ("trace", "empirical")
#: Smallest number of quadrature nodes with which results are averaged; the estimate of memory assumes this number.
FEWEST_NODES = 2**12
#: Largest share of Q_0 in one spike without a remark on test errors; above it the pre-activation is not Gaussian.
LARGEST_SHARE = 0.1


@dataclass(frozen=True)
class AttentionIndex(Specification):
    """Sequences of Gaussian tokens labelled by a tied attention layer of rank proportional to the dimension.

    Tokens x in R^{T x d} have rows x_a ~ N(0, I_d). With a symmetric S_0 whose eigenvalues follow ``target``,

        h_ab(S) = (x_a^T S x_b - delta_ab Tr S) / sqrt(d),      R = h(S_0) + sqrt(noise) xi / sqrt(2 - delta_ab),

    xi symmetric with entries N(0, 1). As for the signal, the variance of the noise on the diagonal, ``noise``, is twice
    the variance off the diagonal. The label is y = sigma(target_beta R), sigma acting on rows; the data are
    n = alpha d^2 samples.

    Parameters
    ----------
    tokens : int
        Sequence length T.
    target : Target
        Law of the eigenvalues of S_0: MarchenkoPastur, Atoms, PowerLaw, RankedPowerLaw, Empirical, or Spiked.
    noise : float
        Variance Delta >= 0 of the noise on the diagonal of the pre-activation.
    beta : float
        Inverse temperature of the learner's softmax.
    target_beta : float, optional
        Inverse temperature of the target's softmax; by default equal to ``beta``.
    activation : "softmax", "hardmax" or "linear"
        sigma; "linear" observes R itself.
    output : "label" or "sequence"
        Observe y, or y x. Both agree in the limit, since x x^T / d -> I; at d = 60 they differ by one or two percent.
    centring : "trace" or "empirical"
        Centre h with Tr S, or with the mean of x x^T over the training set. Both agree in the limit.

    Examples
    --------
    >>> import asymptotix as asx
    >>> task = asx.AttentionIndex(tokens=3, target=asx.MarchenkoPastur(0.5), noise=0.5)
    >>> task.visible_directions, task.signal, task.noisy_signal
    (5, 1.5, 1.75)
    """

    tokens: int = 2
    target: Target = field(default_factory=lambda: MarchenkoPastur(0.5))
    noise: float = 0.0
    beta: float = 1.0
    target_beta: float | None = None
    activation: str = "softmax"
    output: str = "label"
    centring: str = "trace"

    def __post_init__(self) -> None:
        def clean(name: str, value: float) -> None:
            object.__setattr__(self, name, value)

        clean("tokens", checks.integer("tokens", self.tokens, 1))
        clean("noise", float(checks.non_negative("noise", self.noise)))
        clean("beta", float(checks.positive("beta", self.beta)))
        if self.target_beta is not None:
            clean("target_beta", float(checks.positive("target_beta", self.target_beta)))
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.one_of("output", self.output, OUTPUTS)
        checks.one_of("centring", self.centring, CENTRINGS)
        if not isinstance(self.target, Target):
            raise TypeError(
                "target must be a Target: MarchenkoPastur(0.5), say, or Atoms, PowerLaw, Empirical; "
                f"got {checks.named(self.target)}"
            )
        if self.target.mean_square == 0 and self.noise == 0:
            raise ValueError(
                "noise must be positive where the target is spikes of weight zero on a zero bulk: Q_0 = 0, and nothing "
                "sets the scale of the outputs; or give the spikes their weight, Spiked(..., dim=d); got noise=0"
            )
        if self.tokens == 1 and self.activation != "linear":
            raise ValueError(
                f"tokens must be at least 2 with activation={self.activation!r}: the {self.activation} of one entry is "
                "constant, got 1"
            )

    def refuse_too_many_tokens(self) -> None:
        """Raise a MemoryError with an estimate if averages over T x T outputs do not fit; their memory grows as T^4."""
        T, N = self.tokens, self.visible_directions
        # the map from N coordinates to T^2 logits, and coordinates, outputs and points at FEWEST_NODES nodes
        needed = 8 * (2 * T * T * N + FEWEST_NODES * (6 * N + 2 * T * T))
        refuse_beyond_memory(needed, f"an average over the outputs of {T} tokens", "fewer tokens")

    def remark_on_spikes(self) -> str:
        """Return a remark that test errors are approximate if one spike carries more than a tenth of Q_0; else ""."""
        target = self.target
        if not len(target.spikes) or self.activation == "linear" or not target.spike_weight:
            return ""
        share = target.spike_weight * max(target.spikes) ** 2 / target.mean_square
        if share <= LARGEST_SHARE:
            return ""
        return (
            f"test errors are approximate: one spike carries {share:.0%} of Q_0, and the pre-activation, then a sum of "
            "few products, is not Gaussian; outliers and estimation_error are not concerned"
        )

    @property
    def teacher_beta(self) -> float:
        """Inverse temperature of the target's activation: ``target_beta``, or ``beta`` if that is None."""
        return self.beta if self.target_beta is None else self.target_beta

    @property
    def beta_ratio(self) -> float:
        """beta_0/beta: the learner S = (beta_0/beta) S_0 gives the target's noiseless output."""
        return self.teacher_beta / self.beta

    @property
    def pairs(self) -> int:
        """L = T(T+1)/2, the number of entries of a symmetric T x T matrix."""
        return self.tokens * (self.tokens + 1) // 2

    @property
    def visible_directions(self) -> int:
        """Number N of directions of R that y depends on: L, or L - 1 if sigma ignores an equal shift of all entries."""
        return self.pairs if self.activation == "linear" else self.pairs - 1

    @property
    def visible(self) -> int:
        """Alias of :attr:`visible_directions`."""
        return self.visible_directions

    @property
    def signal(self) -> float:
        """Q_0, the mean square of the target's eigenvalues."""
        return self.target.mean_square

    @property
    def noisy_signal(self) -> float:
        """Q_0' = Q_0 + noise/2, the variance of z_ab in the noisy pre-activation R_ab = sqrt(1 + delta_ab) z_ab."""
        return self.target.mean_square + 0.5 * self.noise
