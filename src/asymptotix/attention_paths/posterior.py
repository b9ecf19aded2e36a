"""Bayesian value weights at finite width: the problem that the verbs act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr

from ..core import checks
from ..core.memory import refuse_beyond_memory
from ..core.problem import Outcome, Problem
from .action import Action, required_bytes
from .network import AttendedInputs, AttentionPaths
from .order_parameter import minimise
from .predictor import Predictor

if TYPE_CHECKING:
    from ..core.result import Result

#: Test examples whose attended inputs are held at a time.
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class PathPosterior(Problem):
    """Posterior of the value weights of a deep attention network with fixed attention, at finite width N.

    p(weights) is proportional to exp(-|f(X) - Y|^2/(2 temperature) - |weights|^2/(2 prior_variance)). At large N and
    number P of examples with P/N fixed it is described by a matrix U over pairs of attention paths, the minimiser
    of an action, which weighs the paths' kernels. ``width=inf`` is the Gaussian-process limit, U = s2^{L+1} I.

    Parameters
    ----------
    network : AttentionPaths
    inputs : array (examples, tokens, features) or AttendedInputs
    labels : array (examples,)
    temperature : float
    prior_variance : float
    """

    controls: ClassVar[tuple[str, ...]] = ("width",)
    readouts: ClassVar[tuple[str, ...]] = ("predict", "evaluate", "alignment")

    network: AttentionPaths
    inputs: np.ndarray | AttendedInputs
    labels: np.ndarray
    temperature: float = 0.01
    prior_variance: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.network, AttentionPaths):
            raise TypeError(f"network must be an AttentionPaths, got {self.network!r}")
        labels = np.asarray(checks.real_array("labels", self.labels), float)
        if labels.ndim != 1 or not np.isfinite(labels).all():
            raise ValueError(f"labels must be a vector of finite numbers, got shape {labels.shape}")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "temperature", float(checks.positive("temperature", self.temperature)))
        object.__setattr__(self, "prior_variance", float(checks.positive("prior_variance", self.prior_variance)))
        examples = len(self.inputs.tokens if isinstance(self.inputs, AttendedInputs) else self.inputs)
        if examples != len(labels):
            raise ValueError(f"labels must be one per example, got {len(labels)} labels for {examples} inputs")

    @cached_property
    def attended(self) -> np.ndarray:
        """Attended inputs xi of the training examples, (P, paths, N_0)."""
        tokens = self.inputs.tokens if isinstance(self.inputs, AttendedInputs) else self.inputs
        P, features = len(tokens), np.shape(tokens)[-1]
        needed = required_bytes(P, self.network.paths, features)
        refuse_beyond_memory(needed, f"{P} examples on {self.network.paths} paths", "fewer examples or heads")
        return self.network.attended(self.inputs)

    def dimensions(self) -> Mapping[str, tuple[str, ...]]:
        return {"order_parameter": ("path", "path_other")}

    def check_control(self, name: str, values: Any) -> np.ndarray:
        grid = np.atleast_1d(np.asarray(checks.real_array(name, values), float))
        if grid.ndim != 1 or np.isnan(grid).any() or (grid <= 0).any():
            raise ValueError(f"{name} must be positive numbers (inf is the Gaussian-process limit), got {values!r}")
        return grid

    def solve_points(
        self, points: Sequence[Mapping[str, float]], *, start: Any, tolerance: float, progress: Any
    ) -> Iterator[tuple[int, Outcome]]:
        """From wide to narrow, each width starting from the one before."""
        checks.one_of("start", start, ("uninformed",))
        before = None
        for position in np.argsort([-point["width"] for point in points], kind="stable"):
            width = float(points[position]["width"])
            progress.message(f"width = {width:g}")
            options = (self.network.heads, self.temperature, self.prior_variance, width)
            action = Action(self.attended, self.labels, *options)
            found = minimise(action, start=before, tolerance=min(1e-8, tolerance))
            before = found.U if found.converged and np.isfinite(width) else before
            values = {"order_parameter": found.U, "action": found.action, "gradient_norm": found.gradient_norm}
            yield int(position), Outcome(values, found.status, found.converged)

    # -- what a result can be asked ----------------------------------------------------------------------------

    def predict(self, result: Result, inputs: np.ndarray | AttendedInputs) -> tuple[xr.DataArray, xr.DataArray]:
        """Mean and variance of the output at new inputs, for every point of the result."""
        means, variances = [], []
        for predictor in self._predictors(result):
            parts = [predictor(self.network.attended(chunk)) for chunk in _chunks(inputs)]
            means.append(np.concatenate([part.mean for part in parts]))
            variances.append(np.concatenate([part.variance for part in parts]))
        return self._labelled(result, means, "example"), self._labelled(result, variances, "example")

    def evaluate(self, result: Result, inputs: np.ndarray | AttendedInputs, labels: np.ndarray) -> xr.Dataset:
        """Accuracy of the sign and mean squared error of the mean, for every point of the result."""
        labels = np.asarray(checks.real_array("labels", labels), float)
        mean, variance = self.predict(result, inputs)
        if mean.sizes["example"] != len(labels):
            raise ValueError(f"labels must be one per example, got {len(labels)} for {mean.sizes['example']} inputs")
        right = xr.DataArray(labels, dims="example")
        return xr.Dataset(
            {
                "accuracy": (np.sign(mean) == np.sign(right)).mean("example"),
                "test_error": ((mean - right) ** 2).mean("example"),
                "variance": variance.mean("example"),
            }
        )

    def alignment(self, result: Result, count: int = 30) -> xr.DataArray:
        """Overlap of the labels with the leading eigenvectors of the kernel, for every point of the result."""
        rows = [predictor.alignment(count) for predictor in self._predictors(result)]
        return self._labelled(result, rows, "component")

    def _predictors(self, result: Result) -> Iterator[Predictor]:
        U = result.ds["order_parameter"].transpose(..., "path", "path_other")
        dims = [str(dim) for dim in U.dims[:-2]]
        for place in np.ndindex(*U.shape[:-2]):
            at = dict(zip(dims, place, strict=True))
            own = {dim: float(U.coords[dim][k]) for dim, k in at.items() if dim in ("temperature", "prior_variance")}
            options = {"temperature": self.temperature, "prior_variance": self.prior_variance} | own
            yield Predictor(self.attended, self.labels, U.values[place], **options)

    def _labelled(self, result: Result, rows: list[np.ndarray], name: str) -> xr.DataArray:
        U = result.ds["order_parameter"].transpose(..., "path", "path_other")
        dims = [str(dim) for dim in U.dims[:-2]]
        coords = {dim: U.coords[dim] for dim in dims if dim in U.coords}
        return xr.DataArray(np.stack(rows).reshape(*U.shape[:-2], -1), dims=[*dims, name], coords=coords)


def _chunks(inputs: np.ndarray | AttendedInputs) -> Iterator[np.ndarray | AttendedInputs]:
    tokens = inputs.tokens if isinstance(inputs, AttendedInputs) else np.asarray(inputs)
    for first in range(0, len(tokens), _CHUNK):
        part = slice(first, first + _CHUNK)
        if isinstance(inputs, AttendedInputs):
            yield AttendedInputs(inputs.tokens[part], tuple(matrix[part] for matrix in inputs.attention))
        else:
            yield tokens[part]
