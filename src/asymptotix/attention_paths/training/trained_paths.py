"""A network that was trained by gradient descent: its outputs, its training history, and its file."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import xarray as xr

from ...numerics import checks
from ...numerics.arrays import Array
from ..heads import empirical_order_parameter
from ..network.attended_inputs import in_chunks
from ..network.given_arrays import checked_tokens, require_signs
from ..network.path_network import AttentionPaths
from ..network.weights import Weights
from .array_file import read_arrays, write_arrays
from .trainable import Trainable, of_order_one, with_attention

KIND = "trained network"
SCHEMA_VERSION = 1
#: Most bytes of attended inputs that a prediction holds in memory at a time. Smaller: more chunks, slower.
_CHUNK_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class TrainedPaths:
    """Network trained by gradient descent; :func:`asymptotix.train` returns it.

    Attributes
    ----------
    trained : Trainable
        All weights in the scaling of the training, w = W/sqrt(fan-in), with separate queries and keys.
    readout : "mean" or int
        Average over the tokens, or the index of one token.
    history : Dataset (step)
        ``loss`` and ``train_accuracy``, averaged over the batches since the last row; if validation data were given,
        also ``validation_accuracy`` and ``validation_error`` at that step.
    settings : mapping
        Options of the training, with ``steps_done`` (of ``steps``) and ``kept_step``, the step of the kept weights.
    provenance : mapping
        Versions, device, date, commit, wall seconds.

    Examples
    --------
    >>> import numpy as np
    >>> import asymptotix as asx
    >>> rng = np.random.default_rng(0)
    >>> inputs, labels = rng.standard_normal((24, 5, 6)), np.where(np.arange(24) % 2, 1.0, -1.0)
    >>> small = {"width": 8, "key_size": 3, "batch": 8, "steps": 20, "progress": False}
    >>> trained = asx.train(asx.AttentionPaths(layers=2, heads=2), (inputs, labels), **small)
    >>> trained.finished, trained.network.paths, sorted(trained.evaluate(inputs, labels))
    (True, 4, ['accuracy', 'test_error'])
    """

    trained: Trainable
    readout: int | str = "mean"
    history: xr.Dataset = field(default_factory=xr.Dataset)
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def network(self) -> AttentionPaths:
        """The network, whose ``attention`` and ``attended`` use the trained queries and keys."""
        return with_attention(self.trained, self.readout)

    @functools.cached_property
    def weights(self) -> Weights:
        """Projection, values and readout with entries of order one: ``network.forward(weights, inputs)`` is f."""
        return of_order_one(self.trained)

    @property
    def finished(self) -> bool:
        """Whether all steps were done; an interrupted training has done fewer."""
        return self.settings.get("steps_done") == self.settings.get("steps")

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs f in double precision; their sign is the class.

        Parameters
        ----------
        inputs : array (examples, T, N0)

        Returns
        -------
        array (examples,)
        """
        return self.path_outputs(inputs).sum(axis=1)

    def path_outputs(self, inputs: np.ndarray) -> np.ndarray:
        """Return the contribution of every path to the output f, Tiberi et al., arXiv:2405.15926, eq. (5).

        The sum over all paths is f. The output without some heads is the sum over the paths through none of them; for
        rescaled layers, multiply it by sqrt(H_l / remaining heads) of every layer. So one call serves all prunings.

        Parameters
        ----------
        inputs : array (examples, T, N0)

        Returns
        -------
        array (examples, paths)
            Paths in the order of their heads, the first layer's head slowest.
        """
        x, network, weights = checked_tokens("inputs", inputs), self.network, self.weights
        rows = network.effective_weights(weights) @ weights.V0
        rows /= math.sqrt(network.paths * math.prod(weights.V0.shape))
        step = max(1, _CHUNK_BYTES // (8 * network.paths * x.shape[-1]))
        found = [np.einsum("epi,pi->ep", network.attended(part), rows) for part in in_chunks(x, step)]
        return np.concatenate(found)

    def evaluate(self, inputs: np.ndarray, labels: np.ndarray) -> xr.Dataset:
        """Return accuracy and squared error on labelled data.

        Parameters
        ----------
        inputs : array (examples, T, N0)
        labels : array (examples,)
            +1 or -1, as in training.

        Returns
        -------
        Dataset
            ``accuracy``, the share of outputs with the sign of their label, and ``test_error``, the mean of (f - y)^2.
        """
        y = checks.array_of_shape("labels", labels, (len(checked_tokens("inputs", inputs)),))
        require_signs("labels", y)
        f = self.predict(inputs)
        return xr.Dataset({"accuracy": np.mean(np.sign(f) == np.sign(y)), "test_error": np.mean((f - y) ** 2)})

    def order_parameter(self) -> np.ndarray:
        """Return U^{pi pi'} of the trained values, (paths, paths); see :func:`asymptotix.empirical_order_parameter`."""
        return empirical_order_parameter(self.weights)

    def with_heads(self, kept: Sequence[np.ndarray], *, rescale: bool) -> Self:
        """Return the network with only the heads marked in ``kept``, (H_l,) per layer; see :func:`asymptotix.prune`."""

        def chosen(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(array[keep] for array, keep in zip(arrays, kept, strict=True))

        values = chosen(self.trained.values)
        if not rescale:
            # The smaller network divides by the square root of its own number of heads.
            shares = [math.sqrt(keep.mean()) for keep in kept]
            values = tuple(V if s == 1 else s * V.astype(float) for s, V in zip(shares, values, strict=True))
        queries, keys = chosen(self.trained.queries), chosen(self.trained.keys)
        smaller = self.trained._replace(queries=queries, keys=keys, values=values)
        return dataclasses.replace(self, trained=smaller, settings={**self.settings, "pruned": self._pruned(kept)})

    def _pruned(self, kept: Sequence[np.ndarray]) -> list[list[int]]:
        """Return all heads pruned now or before, as pairs [layer, head] that count from 0 in the network trained."""
        before = {tuple(pair) for pair in self.settings.get("pruned", ())}
        gone = set(before)
        for layer, keep in enumerate(kept):
            places = (head for head in range(len(keep) + len(before)) if (layer, head) not in before)
            gone |= {(layer, head) for head, stays in zip(places, keep, strict=False) if not stays}
        return [list(pair) for pair in sorted(gone)]

    def save(self, path: str | os.PathLike) -> None:
        """Write an npz file that :meth:`load` reads and ``numpy.load`` opens; it appears only when it is complete."""
        header = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "readout": self.readout,
            "settings": dict(self.settings),
            "provenance": dict(self.provenance),
        }
        history = {f"history.{name}": np.asarray(values) for name, values in self.history.variables.items()}
        write_arrays(path, header, {**named_arrays(self.trained), **history})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a file that :meth:`save` wrote; a damaged file or one of another kind is refused."""
        header, arrays = read_arrays(path, KIND)
        if (version := header.get("schema_version")) != SCHEMA_VERSION:
            raise ValueError(f"{path} must have schema version {SCHEMA_VERSION}, got {version}: upgrade asymptotix")
        rows = {name.removeprefix("history."): x for name, x in arrays.items() if name.startswith("history.")}
        return cls(
            trained=trainable_from(arrays),
            readout=header["readout"],
            history=as_history(rows),
            settings=header["settings"],
            provenance=header["provenance"],
        )

    def __repr__(self) -> str:
        width, features = self.trained.projection.shape
        heads = ", ".join(str(len(V)) for V in self.trained.values)
        done, total = self.settings.get("steps_done", "?"), self.settings.get("steps", "?")
        return (
            f"<asymptotix trained network: heads {heads}; width {width}, {features} features, keys of size "
            f"{self.trained.queries[0].shape[1]}\n  {done} of {total} steps, weights of step "
            f"{self.settings.get('kept_step', '?')}{_last_row(self.history)}>"
        )


def named_arrays(trained: Trainable, prefix: str = "") -> dict[str, np.ndarray]:
    """Return name -> array for all weights, such as ``values.0`` for the first layer's, each after ``prefix``."""
    found: dict[str, np.ndarray] = {}
    for name, value in trained._asdict().items():
        layers = {f"{name}.{layer}": w for layer, w in enumerate(value)} if isinstance(value, tuple) else {name: value}
        found |= {f"{prefix}{key}": np.asarray(w) for key, w in layers.items()}
    return found


def trainable_from(arrays: Mapping[str, np.ndarray], prefix: str = "") -> Trainable:
    """Return the weights from ``arrays``, name -> array as :func:`named_arrays` returns them; others are ignored."""
    layers = sum(name.startswith(f"{prefix}values.") for name in arrays)

    def each(name: str) -> tuple[np.ndarray, ...]:
        return tuple(arrays[f"{prefix}{name}.{layer}"] for layer in range(layers))

    projection, readout = arrays[f"{prefix}projection"], arrays[f"{prefix}readout"]
    return Trainable(each("queries"), each("keys"), projection, each("values"), readout)


def as_history(rows: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return the history of a training, a Dataset along ``step``, from ``rows``: column name -> values."""
    columns = {name: ("step", np.asarray(column)) for name, column in rows.items() if name != "step"}
    return xr.Dataset(columns, coords={"step": np.asarray(rows["step"])} if "step" in rows else None)


def _last_row(history: xr.Dataset) -> str:
    if not history.sizes.get("step"):
        return ""
    row = history.isel(step=-1)
    words = [f"loss {float(row['loss']):.4g}"]
    if "validation_accuracy" in history:
        words.append(f"best validation accuracy {float(history['validation_accuracy'].max()):.2%}")
    return "\n  " + ", ".join(words)
