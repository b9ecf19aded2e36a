"""The problem of Bayesian value weights at finite width, for ``solve``, ``simulate`` and the readouts of a result.

Tiberi et al., arXiv:2405.15926: the posterior is eq. (8), or (19), and the order parameter minimises the action of
eq. (11), in full eqs. (32) to (34). Unequal widths, heads, variances and several outputs go beyond the paper.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from ..core.definitions.observable import Observable
from ..core.problem import Outcome, Problem
from ..core.progress import Progress
from ..core.result import Result
from ..core.specification import numeric_fields, with_fields
from ..core.status import Status
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory
from . import posterior_readouts
from .heads import path_names
from .network.attended_inputs import AttendedInputs, Inputs, tokens_of
from .network.given_arrays import labels_of_examples, refuse_other_classes
from .network.path_network import AttentionPaths
from .path_definitions import PATH_DEFINITIONS
from .pruning import Heads
from .theory.action import Action, checked_ratios, checked_variances, required_bytes
from .theory.order_parameter import OrderParameter, minimise
from .theory.single_path import SinglePath

#: Scaled gradient of the action, max |U^1/2 (dS/dU) U^1/2|, below which the search for its minimum ends. A smaller
#: tolerance of the user replaces it. Much larger: U is inaccurate. Much smaller: rounding ends the search first.
_GRADIENT = 1e-8


@dataclass(frozen=True, eq=False, repr=False)
class PathPosterior(Problem):
    """Posterior of the value weights of a deep attention network with fixed attention, at finite width N.

    p(weights) is proportional to exp(-|f(X) - Y|^2/(2 temperature) - |weights|^2/(2 prior_variance)). At large N and
    large number P of examples, with P/N fixed, a matrix U over pairs of attention paths describes the posterior. U
    minimises an action and weights the paths' kernels. ``width=inf`` is the Gaussian-process limit: U is the identity
    times prior_variance^{L+1}, for L layers.

    Parameters
    ----------
    network : AttentionPaths
    inputs : array (examples, tokens, features) or AttendedInputs
    labels : array (examples,) or (examples, outputs)
        Labels of two classes are -1 and +1. The outputs have prior mean zero and their sign is the class, so two values
        that are not opposite numbers are refused. Three or more values are fitted as numbers.
        With an axis for outputs, C readouts share the network below them and U acts on pairs (path, output).
    temperature : float
        Variance of the label noise in the likelihood.
    prior_variance : float or tuple of float
        One variance for all weights, or L + 2 variances: projection, value matrices of layers 1..L, readout.
    width_ratios : tuple of float, optional
        (r_1, ..., r_L, r_a): at width N the value matrices of layer l read from N_l = r_l N neurons and the readout
        from N_a = r_a N. By default all ratios are one.

    Notes
    -----
    *Contents of a result*; full definitions are in the attributes, such as ``result.action.attrs``.
    ``order_parameter(path, path_other)``: U, the mean scalar product of two paths' effective weights divided by N; the
    first layer's head is slowest along ``path``. ``action``: S(U), per width; the posterior of U is exp(-N S/2) at
    leading order. ``<name>_err``: the numerical error of ``<name>``. :class:`NUTS` lists what chains add.

    A point of :func:`solve` is converged where ``order_parameter_err`` is at most ``tolerance`` times the largest entry
    of U. ``gradient_norm`` is the gradient of the action where the search ended, max |U^1/2 (dS/dU) U^1/2|. The search
    ends when this gradient is below 1e-8 (below ``tolerance`` if that is smaller), or when rounding stops it.

    The equations, each with the function that computes it, are in docs/theory/attention_paths.md.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> data = asx.tasks.hidden_markov(examples=20, seed=0)
    >>> problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)
    >>> theory = asx.solve(problem, width=[10, np.inf], progress=False)
    >>> bool((theory.order_parameter.sel(width=np.inf) == np.eye(4)).all())     # a Gaussian process
    True
    >>> mean, variance = theory.sel(width=10).predict(data.test_inputs[:3])
    >>> mean.shape
    (3,)
    """

    controls: ClassVar[tuple[str, ...]] = ("width",)
    readouts: ClassVar[tuple[str, ...]] = ("predict", "evaluate", "alignment", "kernel")

    network: AttentionPaths
    inputs: np.ndarray | AttendedInputs
    labels: np.ndarray
    temperature: float = 0.01
    prior_variance: float | tuple[float, ...] = 1.0
    width_ratios: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.network, AttentionPaths):
            raise TypeError(f"network must be an AttentionPaths, got {self.network!r}")
        layers = self.network.layers
        variances = checked_variances(self.prior_variance, layers)
        ratios = None if self.width_ratios is None else checked_ratios(self.width_ratios, layers)
        temperature = float(checks.positive("temperature", self.temperature))
        examples = len(tokens_of(self.inputs))
        self.network.check(self.inputs)
        object.__setattr__(self, "labels", labels_of_examples(self.labels, examples))
        refuse_other_classes(self.labels)
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "prior_variance", variances[0] if np.ndim(self.prior_variance) == 0 else variances)
        object.__setattr__(self, "width_ratios", ratios)

    def __repr__(self) -> str:
        heads, shape = " x ".join(map(str, self.network.heads)), np.shape(tokens_of(self.inputs))
        ratios = "" if self.width_ratios is None else f", width_ratios={self.width_ratios}"
        return (
            f"PathPosterior({heads} heads, inputs {shape}, labels {self.labels.shape}, "
            f"temperature={self.temperature}, prior_variance={self.prior_variance}{ratios})"
        )

    @property
    def outputs(self) -> int:
        """C, the number of outputs."""
        return 1 if self.labels.ndim == 1 else self.labels.shape[1]

    @property
    def prior_variances(self) -> tuple[float, ...]:
        """L + 2 prior variances: of the projection, the value matrices of layers 1..L, and the readout."""
        return checked_variances(self.prior_variance, self.network.layers)

    def widths(self, width: float) -> tuple[float, ...]:
        """Return N_1, ..., N_L, N_a, the input widths of the value layers and the readout; all inf for width inf."""
        ratios = checked_ratios(self.width_ratios, self.network.layers)
        # Rounded, because a product such as 0.07 * 100 misses its integer in the last digit of double precision.
        return tuple(round(r * float(width), 9) if math.isfinite(width) else math.inf for r in ratios)

    @cached_property
    def attended(self) -> np.ndarray:
        """Attended inputs xi of the training examples, (P, paths, N_0)."""
        P, _, features = np.shape(tokens_of(self.inputs))
        needed = required_bytes(P, self.network.paths, features, self.outputs)
        what = f"{P} examples on {self.network.paths} paths and {self.outputs} outputs"
        refuse_beyond_memory(needed, what, "fewer examples, heads or outputs")
        return self.network.attended(self.inputs)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        if self.labels.ndim == 1:
            return {"order_parameter": ("path", "path_other")}
        return {"order_parameter": ("path", "output", "path_other", "output_other")}

    def observables(self) -> Mapping[str, Observable]:
        return PATH_DEFINITIONS

    def path_labels(self) -> Sequence[str]:
        """Return the names of the paths: path "1-3" passes head 1 of layer 1 and head 3 of layer 2."""
        return path_names(self.network.heads)

    def check_control(self, name: str, values: ArrayLike) -> np.ndarray:
        grid = np.atleast_1d(np.asarray(checks.real_array(name, values), float))
        if grid.ndim != 1 or np.isnan(grid).any() or (grid <= 0).any():
            raise ValueError(f"{name} must be positive numbers (inf is the Gaussian-process limit), got {values!r}")
        return grid

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: str | ArrayLike, tolerance: float, progress: Progress
    ) -> Iterator[tuple[int, Outcome]]:
        """Solve from the widest to the narrowest width; yield (position in ``points``, outcome).

        Each search starts at the last converged minimum.
        """
        first = self._first(start)
        widths = np.array([point["width"] for point in points], float)
        if notes := [note for width in widths if (note := self._narrow(width))]:
            warnings.warn("; ".join(dict.fromkeys(notes)), RuntimeWarning, stacklevel=2)
        search, before = self._search(min(_GRADIENT, tolerance)), first
        shape = (self.network.paths, *self.labels.shape[1:]) * 2
        for position in np.argsort(-widths, kind="stable"):
            width = float(widths[position])
            progress.message(f"width = {width:g}")
            found = search(width, before)
            before = found.U if found.status.converged and np.isfinite(width) else before
            values = {
                "order_parameter": found.U.reshape(shape),
                "order_parameter_err": found.error.reshape(shape),
                "action": found.action,
                "action_err": found.action_error,
                "gradient_norm": found.gradient_norm,
            }
            status, words = _judged(found, tolerance)
            yield int(position), Outcome(values, status, words="; ".join(filter(None, (words, self._narrow(width)))))

    def _first(self, start: str | ArrayLike) -> np.ndarray | None:
        """Return the U (paths C, paths C) at which the first search starts; None is the Gaussian-process limit."""
        if isinstance(start, str):
            if start != "uninformed":
                raise ValueError(
                    f"start must be 'uninformed' (the Gaussian-process limit) or an order parameter, got {start!r}"
                )
            return None
        shape = (self.network.paths, *self.labels.shape[1:]) * 2
        return checks.array_of_shape("start", start, shape).reshape(math.isqrt(math.prod(shape)), -1)

    def _search(self, tolerance: float) -> Callable[[float, np.ndarray | None], OrderParameter]:
        """Return the function (width, U to start from) -> minimum; it stops at the scaled gradient ``tolerance``."""
        data, settings = (self.attended, self.labels), (self.temperature, self.prior_variance)
        if self.network.paths == 1 and self.outputs == 1:
            single = SinglePath(*data, self.network.layers, *settings, self.width_ratios)
            return lambda width, before: single.minimise(width)
        action = Action(*data, self.network.heads, *settings, width_ratios=self.width_ratios)
        return lambda width, before: minimise(action.at_width(width), start=before, tolerance=tolerance)

    def _narrow(self, width: float) -> str:
        """Return a warning about the first layer whose width is below the size of its order parameter, or ""."""
        heads = self.network.heads
        sizes = [math.prod(heads[layer:]) * self.outputs for layer in range(len(heads) + 1)]
        for layer, (N, size) in enumerate(zip(self.widths(width), sizes, strict=True)):
            if size > N:
                last = layer == len(heads)
                where = "the readout" if last else f"layer {layer + 1}"
                place = "" if self.width_ratios is None else f" of {where}"
                what = "outputs" if last else "paths" if self.outputs == 1 else "paths x outputs"
                return (
                    f"width {N:g}{place} is below the {size} {what}: corrections of order {what} / width, which the "
                    "theory leaves out, are large; NUTS is exact there"
                )
        return ""

    # -- readouts of a result ----------------------------------------------------------------------------------

    def predict(
        self,
        result: Result,
        inputs: Inputs,
        without: Heads | None = None,
    ) -> tuple[xr.DataArray, xr.DataArray]:
        """Return mean and variance of the output at new inputs, for every point of the result.

        For a sampled result, both are averages over the draws of one chain: draws of the order parameter, given which
        the output is exactly Gaussian, or draws of the weights. Over all chains the mean is ``mean.mean("seed")`` and
        the variance is ``variance.mean("seed") + mean.var("seed")``.

        Parameters
        ----------
        inputs : array (examples, tokens, features) or AttendedInputs
        without : sequence of pairs (layer, head), or of strings such as "layer 1 head 2", optional
            Heads taken out after learning, without fitting anew: f is a sum over paths, and mean and variance are those
            of the remaining paths' part of f, under the posterior of the whole network. Pairs count from zero, strings
            from one, as in :func:`prune`: "layer 1 head 2" is (0, 1).

        Returns
        -------
        mean, variance : DataArray (..., example) or (..., example, output)
        """
        return posterior_readouts.predict(self, result, inputs, without)

    def evaluate(
        self,
        result: Result,
        inputs: Inputs,
        labels: np.ndarray,
        without: Heads | None = None,
    ) -> xr.Dataset:
        """Return ``accuracy``, ``test_error`` and ``variance`` on labelled inputs, for every point of the result.

        ``accuracy`` is the share of correct predictions, ``test_error`` the squared error of the mean prediction,
        ``variance`` the output's variance; these two are means over examples and outputs. A prediction is correct
        where it has the label's sign; with two or more outputs, where prediction and label have the same largest
        output. ``labels`` are (examples,) or (examples, outputs); if two classes were learned, only these may occur.
        ``without``: see `predict`.
        """
        return posterior_readouts.evaluate(self, result, inputs, labels, without)

    def alignment(self, result: Result, count: int = 30) -> xr.DataArray:
        """Return the overlaps (..., component) of the labels with the kernel's ``count`` leading eigenvectors.

        The overlap of labels Y, P examples with C outputs, with the unit eigenvector e_r is |e_r . Y| / sqrt(P C): 1
        if labels of +-1 lie along e_r. The kernel acts on all pairs (example, output). ``component`` goes from the
        largest eigenvalue down.
        """
        return posterior_readouts.alignment(self, result, count)

    def kernel(self, result: Result) -> xr.DataArray:
        """Return the kernel K (..., example, example_other) between the training examples, for every point.

        K = (s_0/d) sum U^{pi pi'} C_{pi pi'} over pairs of the d paths, with C the kernel of a pair and s_0 the prior
        variance of the projection. For a sampled result, U is the mean of the draws. With an axis for outputs, the
        dimensions are (..., output, example, output_other, example_other).
        """
        return posterior_readouts.kernel(self, result)

    def swept(self, dims: Iterable[str]) -> list[str]:
        """Return the names in ``dims`` (grid dimensions) that are numeric fields of this problem."""
        own = numeric_fields(self)
        return [dim for dim in dims if dim in own]

    def at(self, fields: Mapping[str, float]) -> Self:
        """Return this problem with new values of some fields; ``fields`` is field -> value."""
        return with_fields(self, **fields) if fields else self


def _judged(found: OrderParameter, tolerance: float) -> tuple[Status, str]:
    """Return status and text of a solved point; U's error may be ``tolerance`` times the largest entry of U."""
    if not (np.isfinite(found.U).all() and np.isfinite(found.action)):
        return Status.FAILED, "failed: the action is not finite, width or temperature are beyond what numbers hold"
    if found.status is Status.NOT_CONVERGED and found.gradient_norm > _GRADIENT:
        return found.status, found.words
    error = float(found.error.max() / abs(found.U).max())
    if error <= tolerance:
        return Status.CONVERGED, found.words if found.status.converged else Status.CONVERGED.sentence
    said = f"the numerical error {error:.1e} of the order parameter exceeds the tolerance {tolerance:.1e}"
    return Status.INACCURATE, said if found.status.converged else f"{said}; {found.words}"
