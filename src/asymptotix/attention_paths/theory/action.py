"""Action of the order parameter of a deep attention network at finite width, and its gradient.

With d = H_1 ... H_L paths, attended inputs xi^pi(x) in R^N0 and prior variance s_0 of the projection, the kernel is

    K(x, x') = (s_0 / d) sum_{pi pi'} U^{pi pi'} C_{pi pi'}(x, x'),    C_{pi pi'}(x, x') = xi^pi(x) . xi^pi'(x') / N0,

and at width N and temperature T the action of P examples with labels Y is

    S(U) = S_0(U) + (1/N) [ ln det(K + T I) + Y^T (K + T I)^-1 Y ],

where S_0 is the entropy of `elimination`, minimal over the deeper layers, and the bracket is the energy of `energy`.
The posterior of U is exp(-N S / 2) at leading order. With the energy's slopes D and R, and layer l reading from a width
of r_l N, its gradient is

    dS/dU = r_1 [ (1/s_1) I (x) (U^(2))^-1 - U^-1 ] + (D - R) / N.

With C outputs U acts on paths x outputs and K on examples x outputs; nothing else changes.

Tiberi et al., arXiv:2405.15926, eqs. (10) to (12), in full eqs. (31) to (34), for equal widths, heads and variances.
The paper's kernel has no factor s_0; every prior variance is one there.

Equations ap-action, ap-gp of docs/theory/attention_paths.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...numerics import checks
from .elimination import Layers, Matrix, eliminate, entropy, extended_inverse
from .energy import Energy, Spread
from .path_table import table_bytes

COARSE_SHARE, COARSE_GRADIENT = 0.995, 1e-2
"""Share of the inputs' variance that a coarse draft keeps, and the gradient that is left at its minimum."""

SINGLE_NOISE = 1e-4
"""Largest error of K in single precision at which drafts help, over the temperature."""

SINGLE_ROUNDING, SINGLE_GRADIENT = 1e-6, 1e-5
"""Relative error of S in single precision, and the scaled gradient that can be reached there."""


@dataclass(frozen=True)
class ActionValue:
    """The action at one U, its gradient, and their parts.

    Attributes
    ----------
    value
        S.
    D, R
        Derivatives of ln det(K + T I) and of -Y^T (K + T I)^-1 Y with respect to U, shape (d C, d C) like U.
    inner
        The eliminated U^(2), ..., U^(L+1) as matrices; the last is C x C.
    prior_slope
        (1/s_1) I (x) (U^(2))^-1, shape (d C, d C).
    gradient
        dS/dU, shape (d C, d C).
    spread
        Function that returns the `Spread` from which the energy's curvature is estimated, or None.
    """

    value: float
    D: Matrix
    R: Matrix
    inner: list[Matrix]
    prior_slope: Matrix
    gradient: Matrix
    spread: Callable[[], Spread] | None


class Action:
    """Action of given attended inputs and labels as a function of the order parameter U.

    Parameters
    ----------
    xi
        Attended inputs, shape (P, d, N0), first layer's head slowest in the path index.
    labels
        Y, shape (P,), or (P, C) for C outputs.
    heads
        Heads per layer, H_1..H_L.
    temperature
        T > 0.
    prior_variance
        One variance for all weights, or L + 2 variances: projection, value matrices of layers 1..L, readout.
    width
        N; inf is the Gaussian-process limit, where the data drop out of S.
    width_ratios
        r_1..r_L, r_a: the value matrices of layer l read from width r_l N, the readout from r_a N. By default all
        ratios are one.

    Attributes
    ----------
    size
        Rows of U: paths times outputs, outputs fastest.
    layers
        Heads, variances and ratios of widths, in the form that the entropy needs.
    rounding
        Relative rounding error of S.
    """

    rounding = 1e-11

    def __init__(
        self,
        xi: ArrayLike,
        labels: ArrayLike,
        heads: Sequence[int],
        temperature: float,
        prior_variance: float | Sequence[float] = 1.0,
        width: float = np.inf,
        width_ratios: Sequence[float] | None = None,
    ) -> None:
        self.heads = tuple(checks.integer("heads", H, 1) for H in heads)
        if not self.heads:
            raise ValueError("heads must name at least one layer, got none")
        self.paths = int(np.prod(self.heads))
        attended = checks.array_of_shape("xi", xi, (None, self.paths, None))
        self.examples = len(attended)
        if attended.size == 0:
            raise ValueError(f"xi must hold at least one example and one feature, got shape {attended.shape}")
        self.labels = checked_labels("labels", labels, self.examples)
        self.outputs = 1 if self.labels.ndim == 1 else self.labels.shape[1]
        self.size = self.paths * self.outputs
        self.prior_variances = checked_variances(prior_variance, len(self.heads))
        self.layers = Layers(self.heads, self.prior_variances[1:], checked_ratios(width_ratios, len(self.heads)))
        self.temperature = checks.positive("temperature", temperature)
        self.width = checks.positive("width", width, infinite=True)
        self._energy = Energy(attended, self.labels.reshape(self.examples, -1), self.prior_variances[0])

    def at_width(self, width: float) -> Action:
        """Return the action of the same data at another width; both share the features."""
        other = copy.copy(self)
        other.width = checks.positive("width", width, infinite=True)
        return other

    def drafts(self, coarse: bool) -> Iterator[tuple[float, Action]]:
        """Yield (gradient, draft), where a draft is a cheaper action with a nearby minimum, the cheapest first.

        The search for the minimum starts on the drafts; there are none if S is cheap. Below the scaled gradient given,
        the draft's minimiser gets no nearer to that of S. With ``coarse``, the first draft may omit most directions of
        token space, and its minimum is some percent off. The last draft is S in single precision.
        """
        energy = self._energy
        noise = self._rounding_of_single_kernel / self.temperature
        if energy.is_stored or not energy.is_costly or noise > SINGLE_NOISE:
            return
        rank, leading = energy.features.shape[1], energy.leading_directions(COARSE_SHARE)
        if coarse and leading <= rank / 2:
            yield COARSE_GRADIENT, self._draft(leading)
        yield SINGLE_GRADIENT, self._draft(rank)

    @property
    def _rounding_of_single_kernel(self) -> float:
        """Norm of K's error in single precision, for random entries of the size of the diagonal's errors."""
        size = self.prior_order_parameter[0, 0] * self._energy.kernel_scale
        return float(np.finfo(np.float32).eps * size * np.sqrt(self.examples))

    def _draft(self, directions: int) -> Action:
        other = copy.copy(self)
        other._energy = self._energy.draft(directions)
        other.rounding = SINGLE_ROUNDING
        return other

    @property
    def prior_order_parameter(self) -> Matrix:
        """U in the Gaussian-process limit: s_1 ... s_{L+1} I, that is s2^(L+1) I for a single variance s2."""
        return self.layers.prior(0, self.outputs)

    @property
    def first_width(self) -> float:
        """N_1 = r_1 N, the width that the first layer's value matrices read from."""
        return self.layers.ratios[0] * self.width

    def at(self, U: Matrix, start: Sequence[Matrix] | None = None) -> ActionValue:
        """Return S, its gradient and their parts at a symmetric positive definite U of shape (d C, d C).

        `start` holds U^(2), ..., U^(L+1) at which their elimination begins, such as the `inner` of a nearby U.
        """
        self._require_definite(U)
        energy = self._energy.at(U, self.temperature)
        inner = eliminate(U, self.layers, start)
        D, R, spread = self._energy.slopes(energy)
        prior_slope = extended_inverse(inner[0], self.heads[0]) / self.layers.variances[0]
        inverse = np.linalg.inv(U)
        return ActionValue(
            value=entropy(U, inner, self.layers) + energy.value / self.width,
            D=D,
            R=R,
            inner=inner,
            prior_slope=prior_slope,
            gradient=self.layers.ratios[0] * (prior_slope - 0.5 * (inverse + inverse.T)) + (D - R) / self.width,
            spread=spread,
        )

    def _require_definite(self, U: Matrix) -> None:
        if np.shape(U) != (self.size, self.size):
            raise ValueError(f"U must have shape {(self.size, self.size)}, got {np.shape(U)}")
        try:
            np.linalg.cholesky(U)
        except np.linalg.LinAlgError:
            least = np.linalg.eigvalsh(U).min()
            raise np.linalg.LinAlgError(f"U must be positive definite, got smallest eigenvalue {least:.3g}") from None


def required_bytes(examples: int, paths: int, features: int, outputs: int = 1) -> int:
    """Return the peak memory of minimising an action, in bytes, without the attended inputs that are passed in.

    It holds five arrays of the size of the attended inputs (a checked copy, the features, the whitened features of the
    last and of the next step, the curvature's part of these), three of (examples x outputs)^2 and of features^2, and a
    hundred of the size of U, most of them past steps that the search combines.
    """
    square = 3 * (examples * outputs) ** 2 + 3 * features**2 + 100 * (paths * outputs) ** 2
    table = table_bytes(examples, paths, features) if outputs == 1 else 0
    return 8 * (5 * examples * paths * features + square) + table


def checked_labels(name: str, labels: ArrayLike, examples: int) -> Matrix:
    """Return labels as a finite float array of shape (P,) or (P, C), C >= 1."""
    if np.ndim(checks.real_array(name, labels)) == 1:
        return checks.array_of_shape(name, labels, (examples,))
    found = checks.array_of_shape(name, labels, (examples, None))
    if found.shape[1] == 0:
        raise ValueError(f"{name} must have at least one output, got shape {found.shape}")
    return found


def checked_variances(prior_variance: float | Sequence[float], layers: int) -> tuple[float, ...]:
    """Return L + 2 positive variances (projection, value matrices, readout), given one or all of them."""
    if checks.dimensions("prior_variance", prior_variance) == 0:
        return (float(checks.positive("prior_variance", prior_variance)),) * (layers + 2)
    return _positive_numbers("prior_variance", prior_variance, layers + 2)


def checked_ratios(width_ratios: Sequence[float] | None, layers: int) -> tuple[float, ...]:
    """Return L + 1 positive ratios r_1..r_L, r_a (readout); all are one where nothing is given."""
    if width_ratios is None:
        return (1.0,) * (layers + 1)
    return _positive_numbers("width_ratios", width_ratios, layers + 1)


def _positive_numbers(name: str, given: ArrayLike, count: int) -> tuple[float, ...]:
    if checks.real_array(name, given).shape != (count,):
        first = "projection, layers" if name == "prior_variance" else "layers"
        one = "one number or " if name == "prior_variance" else ""
        raise ValueError(f"{name} must be {one}{count} numbers ({first} 1, 2, ..., readout), got {given!r}")
    return tuple(float(checks.positive(name, x)) for x in checks.array_of_shape(name, given, (count,)))
