"""The checkpoint file of a running training, from which a later call resumes.

A checkpoint of another training, or a file that is no checkpoint, is never overwritten. A damaged checkpoint is
renamed, and the training starts anew.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...numerics import interrupts
from .adam_steps import TrainState
from .array_file import DamagedFile, read_arrays, write_arrays
from .trainable import Trainable
from .trained_paths import named_arrays, trainable_from

KIND = "training checkpoint"
#: Least time between two writes in seconds, and the largest share of the time that may go into writing. Larger times
#: lose more steps in a crash; a larger share slows the training.
SECONDS_BETWEEN_WRITES = 30.0
SHARE_OF_WRITING = 0.05
#: Tolerance, relative and absolute, for the probe of the data, which another device rounds differently. Too small: the
#: same data count as other data. Too large: other data go unnoticed.
_PROBE_TOLERANCE = 1e-3


@dataclass
class Progressed:
    """Everything that a training has computed up to some step.

    Attributes
    ----------
    state : TrainState
    rows : dict of lists
        Columns of the history: name -> one number per row.
    best : Trainable or None
        The weights of the best validation so far, None before the first.
    best_accuracy, best_step : float, int
        Validation accuracy of ``best`` (-1 before the first validation), and its step.
    seconds : float
        Wall time so far, in seconds.
    """

    state: TrainState
    rows: dict[str, list[float]]
    best: Trainable | None = None
    best_accuracy: float = -1.0
    best_step: int = 0
    seconds: float = 0.0


class TrainCheckpoint:
    """A file that always holds a complete state of a training; a failure to write it does not stop the training.

    Parameters
    ----------
    path
        Path of the file, which need not exist yet.
    identity
        name -> value of everything that must be equal for the training to resume.
    probe
        Array that identifies the data up to rounding, from `BatchSource.probe`.
    """

    def __init__(self, path: str | os.PathLike, identity: Mapping[str, object], probe: np.ndarray) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint must be the path of a file, got {path!r}")
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"checkpoint must be a file in a folder that exists, got {self.path}")
        self.identity, self.probe = dict(identity), probe
        self.trouble = ""
        self._due = time.monotonic() + SECONDS_BETWEEN_WRITES

    def taken_up(self, start: TrainState) -> Progressed | None:
        """Return the training in the file; None without a file or for a damaged one, which is renamed.

        ``start`` is the state before the first step, with the expected shapes.
        """
        if not self.path.exists():
            return None
        try:
            header, arrays = read_arrays(self.path, KIND)
        except DamagedFile as error:
            aside = self.path.with_name(self.path.name + ".damaged")
            os.replace(self.path, aside)
            warnings.warn(f"checkpoint: {error}. It is now {aside.name}, and training starts anew", stacklevel=4)
            return None
        except ValueError as error:
            raise ValueError(f"checkpoint must be a new name or that of an earlier call: {error}") from error
        self._require_same(header, arrays["probe"])
        leaves, shape = jax.tree.flatten(start)
        found = [arrays[f"state.{k}"] for k in range(len(leaves)) if f"state.{k}" in arrays]
        if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in leaves]:
            raise ValueError(f"checkpoint {self.path} is of another version of optax: delete it to start anew")
        state = jax.tree.unflatten(shape, [jax.numpy.asarray(x) for x in found])
        rows = {name: arrays[f"history.{name}"].tolist() for name in header["columns"]}
        taken = Progressed(state, rows, seconds=header["seconds"])
        if (best := header["best"]) is not None:
            taken.best, taken.best_accuracy = trainable_from(arrays, "best."), best["accuracy"]
            taken.best_step = best["step"]
        return taken

    def offer(self, now: Progressed) -> None:
        """Write the state if enough time has passed since the last write."""
        if (began := time.monotonic()) < self._due:
            return
        self.write(now)
        ended = time.monotonic()
        self._due = ended + max(SECONDS_BETWEEN_WRITES, (ended - began) / SHARE_OF_WRITING)

    def write(self, now: Progressed) -> None:
        """Write the state now; a failure is noted in ``trouble``, not raised."""
        best = None if now.best is None else {"accuracy": now.best_accuracy, "step": now.best_step}
        own = {"identity": self.identity, "best": best, "columns": list(now.rows), "seconds": now.seconds}
        try:
            arrays = {f"state.{k}": np.asarray(x) for k, x in enumerate(jax.tree.leaves(now.state))}
            arrays |= {f"history.{name}": np.array(column, float) for name, column in now.rows.items()}
            arrays |= {} if now.best is None else named_arrays(now.best, "best.")
            write_arrays(self.path, {"kind": KIND, **own}, {"probe": self.probe, **arrays})
            self.trouble = ""
        except Exception as error:  # a full disk or a removed folder must not stop the training
            interrupts.raise_if_hidden_in(error)
            self.trouble = str(error) or type(error).__name__

    def _require_same(self, header: Mapping[str, Any], probe: np.ndarray) -> None:
        there, here = header["identity"], self.identity
        names = [name for name in dict.fromkeys([*here, *there]) if there.get(name) != here.get(name)]
        differing = [f"{name} (there {there.get(name)}, here {here.get(name)})" for name in names]
        if not differing and not np.allclose(probe, self.probe, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE):
            differing = ["the data"]
        if differing:
            raise ValueError(
                f"checkpoint {self.path} is of another training, which differs in {', '.join(differing)}; name another "
                "file, or delete this one to start anew"
            )
