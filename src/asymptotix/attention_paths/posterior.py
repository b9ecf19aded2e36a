"""Bayesian value weights at finite width: the problem that the verbs act on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr

from ..core.problem import Outcome, Problem
from ..core.specification import numeric_fields, with_fields
from ..numerics import checks
from ..numerics.memory import refuse_beyond_memory
from .heads import found_order_parameter
from .network.attention_paths import AttendedInputs, AttentionPaths
from .pruning import remaining_paths
from .sampling.draws import DrawsPredictor
from .theory.action import Action, checked_ratios, checked_variances, required_bytes
from .theory.order_parameter import OrderParameter, minimise
from .theory.predictor import NoPrediction, Predictor
from .theory.single_path import SinglePath

if TYPE_CHECKING:
    from ..core.result import Result

#: Attended inputs of test examples that are held at a time, in bytes.
_CHUNK_BYTES = 2**28
#: What a sampler may have kept of its draws.
_DRAWS = ("order_parameter_draws", "path_weights_draws")

AnyPredictor = Predictor | DrawsPredictor | NoPrediction


@dataclass(frozen=True, eq=False, repr=False)
class PathPosterior(Problem):
    """Posterior of the value weights of a deep attention network with fixed attention, at finite width N.

    p(weights) is proportional to exp(-|f(X) - Y|^2/(2 temperature) - |weights|^2/(2 prior_variance)). At large N and
    number P of examples with P/N fixed it is described by a matrix U over pairs of attention paths, the minimiser
    of an action, which weighs the paths' kernels. ``width=inf`` is the Gaussian-process limit, U = s2^{L+1} I.

    Parameters
    ----------
    network : AttentionPaths
    inputs : array (examples, tokens, features) or AttendedInputs
    labels : array (examples,) or (examples, outputs)
        With an axis for outputs, C readouts share the network below them and U acts on pairs (path, output).
    temperature : float
    prior_variance : float or tuple of float
        One variance of all weights, or L + 2 of them: projection, value matrices of layers 1..L, readout.
    width_ratios : tuple of float, optional
        (r_1, ..., r_L, r_a): at width N the value matrices of layer l read from N_l = r_l N neurons and the readout
        from N_a = r_a N. All one by default.
    """

    controls: ClassVar[tuple[str, ...]] = ("width",)
    readouts: ClassVar[tuple[str, ...]] = ("predict", "evaluate", "alignment")

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
        if math.isinf(temperature):
            raise ValueError("temperature must be finite, got inf")
        examples = len(_tokens(self.inputs))
        self.network.check(self.inputs)
        object.__setattr__(self, "labels", _labels(self.labels, examples))
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "prior_variance", variances[0] if np.ndim(self.prior_variance) == 0 else variances)
        object.__setattr__(self, "width_ratios", ratios)

    def __repr__(self) -> str:
        heads, shape = " x ".join(map(str, self.network.heads)), np.shape(_tokens(self.inputs))
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
        """Variances of the projection, the value matrices of layers 1..L and the readout."""
        return checked_variances(self.prior_variance, self.network.layers)

    def widths(self, width: float) -> tuple[float, ...]:
        """N_1, ..., N_L, N_a: the widths that the layers and the readout read from."""
        ratios = checked_ratios(self.width_ratios, self.network.layers)
        # 0.7 * 10 is to be 7, which double precision misses by its last digit.
        return tuple(round(r * float(width), 9) if math.isfinite(width) else math.inf for r in ratios)

    @cached_property
    def attended(self) -> np.ndarray:
        """Attended inputs xi of the training examples, (P, paths, N_0)."""
        P, _, features = np.shape(_tokens(self.inputs))
        needed = required_bytes(P, self.network.paths, features, self.outputs)
        what = f"{P} examples on {self.network.paths} paths and {self.outputs} outputs"
        refuse_beyond_memory(needed, what, "fewer examples, heads or outputs")
        return self.network.attended(self.inputs)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        if self.labels.ndim == 1:
            return {"order_parameter": ("path", "path_other")}
        return {"order_parameter": ("path", "output", "path_other", "output_other")}

    def check_control(self, name: str, values: Any) -> np.ndarray:
        grid = np.atleast_1d(np.asarray(checks.real_array(name, values), float))
        if grid.ndim != 1 or np.isnan(grid).any() or (grid <= 0).any():
            raise ValueError(f"{name} must be positive numbers (inf is the Gaussian-process limit), got {values!r}")
        return grid

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, Outcome]]:
        """From wide to narrow, each width starting from the one before."""
        first = self._first(start)
        widths = np.array([point["width"] for point in points], float)
        if notes := [note for width in widths if (note := self._narrow(width))]:
            warnings.warn("; ".join(dict.fromkeys(notes)), RuntimeWarning, stacklevel=2)
        search, before = self._search(min(1e-8, tolerance)), first
        shape = (self.network.paths, *self.labels.shape[1:]) * 2
        for position in np.argsort(-widths, kind="stable"):
            width = float(widths[position])
            progress.message(f"width = {width:g}")
            found = search(width, before)
            before = found.U if found.converged and np.isfinite(width) else before
            values = {
                "order_parameter": found.U.reshape(shape),
                "action": found.action,
                "gradient_norm": found.gradient_norm,
            }
            status = "; ".join(filter(None, (found.status, self._narrow(width))))
            yield int(position), Outcome(values, status, found.converged)

    def _first(self, start: Any) -> np.ndarray | None:
        """Where the search at the widest finite width starts: None is the Gaussian-process limit."""
        if isinstance(start, str):
            if start != "uninformed":
                raise ValueError(
                    f"start must be 'uninformed' (the Gaussian-process limit) or an order parameter, got {start!r}"
                )
            return None
        shape = (self.network.paths, *self.labels.shape[1:]) * 2
        return checks.array_of_shape("start", start, shape).reshape(math.isqrt(math.prod(shape)), -1)

    def _search(self, tolerance: float) -> Callable[[float, np.ndarray | None], OrderParameter]:
        """The minimiser as a function of the width and of an order parameter to start from."""
        data, settings = (self.attended, self.labels), (self.temperature, self.prior_variance)
        if self.network.paths == 1 and self.outputs == 1:
            single = SinglePath(*data, self.network.layers, *settings, self.width_ratios)
            return lambda width, before: single.minimise(width)
        action = Action(*data, self.network.heads, *settings, width_ratios=self.width_ratios)
        return lambda width, before: minimise(action.replace(width=width), start=before, tolerance=tolerance)

    def _narrow(self, width: float) -> str:
        """What is wrong with a layer whose width is below the size of its order parameter, or nothing."""
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

    # -- what a result can be asked ----------------------------------------------------------------------------

    def predict(
        self,
        result: Result,
        inputs: np.ndarray | AttendedInputs,
        without: Sequence[tuple[int, int]] | None = None,
    ) -> tuple[xr.DataArray, xr.DataArray]:
        """Mean and variance of the output at new inputs, for every point of the result.

        Of a sampled result both are averages over the draws of one chain, of the order parameter, given which the rest
        is exact, or of the weights. Of all chains together the mean is ``mean.mean("seed")``, and the variance
        ``variance.mean("seed") + mean.var("seed")``.

        Parameters
        ----------
        inputs : array (examples, tokens, features) or AttendedInputs
        without : sequence of (layer, head), optional
            Heads taken out after learning, counted from zero, without learning anew: mean and variance are those of
            the remaining paths' share of f, f = sum over all paths, under the posterior of the whole network.

        Returns
        -------
        mean, variance : DataArray (..., example) or (..., example, output)
        """
        removed = ~remaining_paths(self.network.heads, () if without is None else without, "without")
        features, given = np.shape(_tokens(self.inputs))[-1], np.shape(_tokens(inputs))
        if given[-1] != features:
            raise ValueError(f"inputs must have {features} features like those learned from, got shape {given}")
        parts, predictors = [], list(self._predictors(result))
        for chunk in self._chunks(inputs):
            attended: dict[int, np.ndarray] = {}
            for network, _ in predictors:
                if id(network) not in attended:
                    attended[id(network)] = network.attended(chunk)
                    attended[id(network)][:, removed] = 0.0
            parts.append([predictor(attended[id(network)]) for network, predictor in predictors])
        # By point of the result, then by chunk.
        points = list(zip(*parts, strict=True))
        dims = ("example", "output")[: self.labels.ndim]
        means = [np.concatenate([part.mean for part in point]) for point in points]
        variances = [np.concatenate([part.variance for part in point]) for point in points]
        return self._labelled(result, means, dims), self._labelled(result, variances, dims)

    def evaluate(
        self,
        result: Result,
        inputs: np.ndarray | AttendedInputs,
        labels: np.ndarray,
        without: Sequence[tuple[int, int]] | None = None,
    ) -> xr.Dataset:
        """Accuracy, mean squared error of the mean and mean variance, for every point of the result.

        A prediction is right where it has the label's sign, or with two outputs or more where its largest output is
        the label's largest. `without` as for `predict`.
        """
        labels = _labels(labels, len(_tokens(inputs)))
        if labels.shape[1:] != self.labels.shape[1:]:
            wanted = "(examples,)" if self.labels.ndim == 1 else f"(examples, {self.outputs})"
            raise ValueError(f"labels must have shape {wanted} like those learned from, got {labels.shape}")
        mean, variance = self.predict(result, inputs, without)
        over = ("example", "output")[: labels.ndim]
        target = xr.DataArray(labels, dims=over)
        if self.outputs >= 2:
            right = mean.fillna(-np.inf).argmax("output") == target.argmax("output")
        else:
            right = np.sign(mean) == np.sign(target)
        return xr.Dataset(
            {
                "accuracy": right.where(mean.notnull()).mean(over),
                "test_error": ((mean - target) ** 2).mean(over),
                "variance": variance.mean(over),
            }
        )

    def alignment(self, result: Result, count: int = 30) -> xr.DataArray:
        """Overlap of the labels with the leading eigenvectors of the kernel, for every point of the result.

        |e_r . Y| / sqrt(P C): labels of +-1 along one eigenvector have overlap 1. With several outputs the kernel and
        its eigenvectors are those of all (example, output) together.
        """
        count = checks.integer("count", count, 1)
        rows = [predictor.alignment(count) for _, predictor in self._predictors(result)]
        return self._labelled(result, rows, ("component",))

    def _predictors(self, result: Result) -> Iterator[tuple[AttentionPaths, AnyPredictor]]:
        """Network and predictor of every point of the result, in the order of `_labelled`."""
        U = self._order_parameter(result)
        known: dict[tuple, PathPosterior] = {}
        for place in np.ndindex(*self._grid(U).values()):
            at = dict(zip(self._grid(U), place, strict=True))
            swept = {dim: U.coords[dim].values[k].item() for dim, k in at.items() if dim in numeric_fields(self)}
            key = tuple(swept.values())
            if key not in known:
                known[key] = self._with_fields(swept)
            problem = known[key]
            yield problem.network, problem._predictor(result, U.values[place], at)

    def _with_fields(self, fields: Mapping[str, Any]) -> PathPosterior:
        """The problem with other values of some fields, and the attended inputs where they stay the same."""
        other = with_fields(self, **fields) if fields else self
        if other.network is self.network:
            object.__setattr__(other, "attended", self.attended)
        return other

    def _predictor(self, result: Result, U: np.ndarray, at: Mapping[str, int]) -> AnyPredictor:
        """What predicts from an order parameter, or from the draws of one where there are some."""
        if not np.isfinite(U).all():
            return NoPrediction(self.labels)
        options: dict[str, Any] = {"temperature": self.temperature, "prior_variance": self.prior_variances[0]}
        predictor = Predictor(self.attended, self.labels, U, **options)
        draws = {name: self._draws(result, name, at) for name in _DRAWS if name in result.ds}
        return DrawsPredictor(self.attended, predictor, **draws, **options) if draws else predictor

    def _draws(self, result: Result, name: str, at: Mapping[str, int]) -> np.ndarray:
        """Draws of one point, those left out that an interrupted run lacks."""
        order = ("draw", *self.dimensions()["order_parameter"], "feature")
        rows = result.ds[name].isel(at).transpose(*order, missing_dims="ignore")
        return rows.values[np.isfinite(rows.values.reshape(len(rows), -1)).all(axis=1)]

    def _order_parameter(self, result: Result) -> xr.DataArray:
        return found_order_parameter(result).transpose(..., *self.dimensions()["order_parameter"])

    def _grid(self, U: xr.DataArray) -> dict[str, int]:
        """Dimensions of the result besides those of the order parameter itself, and their lengths."""
        own = self.dimensions()["order_parameter"]
        return {str(dim): length for dim, length in U.sizes.items() if dim not in own}

    def _labelled(self, result: Result, rows: list[np.ndarray], dims: tuple[str, ...]) -> xr.DataArray:
        U = self._order_parameter(result)
        grid = self._grid(U)
        values = np.stack(rows).reshape(*grid.values(), *rows[0].shape)
        coords = {name: coord for name, coord in U.coords.items() if set(coord.dims) <= set(grid)}
        return xr.DataArray(values, dims=[*grid, *dims], coords=coords)

    def _chunks(self, inputs: np.ndarray | AttendedInputs) -> Iterator[np.ndarray | AttendedInputs]:
        tokens = _tokens(inputs)
        step = max(1, _CHUNK_BYTES // (8 * self.network.paths * np.shape(tokens)[-1]))
        for first in range(0, len(tokens), step):
            part = slice(first, first + step)
            if isinstance(inputs, AttendedInputs):
                yield AttendedInputs(tokens[part], tuple(matrix[part] for matrix in inputs.attention))
            else:
                yield tokens[part]


def _tokens(inputs: Any) -> np.ndarray:
    tokens = inputs.tokens if isinstance(inputs, AttendedInputs) else checks.real_array("inputs", inputs)
    if tokens.ndim != 3 or tokens.size == 0:
        raise ValueError(f"inputs must have shape (examples, tokens, features) and not be empty, got {tokens.shape}")
    return tokens


def _labels(given: Any, examples: int) -> np.ndarray:
    """Labels as finite floats of shape (examples,) or (examples, outputs)."""
    labels = np.asarray(checks.real_array("labels", given), float)
    if labels.ndim not in (1, 2) or labels.size == 0:
        raise ValueError(f"labels must have shape (examples,) or (examples, outputs), got {labels.shape}")
    if not np.isfinite(labels).all():
        raise ValueError(f"labels must be finite, got {np.count_nonzero(~np.isfinite(labels))} that are not")
    if len(labels) != examples:
        raise ValueError(f"labels must be one per example, got {len(labels)} labels for {examples} inputs")
    return labels
