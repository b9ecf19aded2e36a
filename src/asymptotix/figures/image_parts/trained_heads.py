"""Networks trained by gradient descent, each in a file that several figures share.

The name of a file states its content. A network trained on another machine is used as if it had been trained here: put
its file into the folder ``shared`` next to the folders of the figures.

Tiberi et al., arXiv:2405.15926, section 4.2.1 and appendix H.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asymptotix as asx

from ..making.parts import Parts

if TYPE_CHECKING:
    from ...tasks.one_shot import OneShotTask

#: Name -> (layers, heads per layer). Keys have the size N/H, as published: 128, 64 and 170 at N = 512.
ARCHITECTURES = {"L2H4": (2, 4), "L2H8": (2, 8), "L3H3": (3, 3)}
#: Settings of a stored network that must equal the requested ones; others, such as how often it was validated, are not
#: part of the experiment.
IDENTITY = ("heads", "width", "key_size", "steps", "batch", "learning_rate", "weight_decay", "seed")


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of a network, as in `asx.train`; validation examples come from the task."""

    width: int
    steps: int
    batch: int = 128
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    seed: int = 0

    def settings_of(self, architecture: str) -> dict[str, Any]:
        """Return the settings by their names in `asx.train`, with the heads and key size of an architecture."""
        layers, heads = ARCHITECTURES[architecture]
        return {"heads": [heads] * layers, "key_size": self.width // heads, **asdict(self)}

    def stem(self, architecture: str) -> str:
        """Return the name, without extension, of the network's file; names of files computed from it begin with it."""
        other = f"_seed_{self.seed}" if self.seed else ""
        return f"{architecture}_N{self.width}_{self.steps}_steps{other}"


def trained_network(parts: Parts, architecture: str, recipe: Recipe, task: OneShotTask) -> asx.TrainedPaths:
    """Return the network of an ``architecture``, such as "L2H4": from its file, or trained now on ``task``.

    An interrupted training resumes.
    """
    settings = recipe.settings_of(architecture)

    def make(unfinished: Path | None) -> asx.TrainedPaths:
        options = {name: value for name, value in settings.items() if name != "heads"}
        found = asx.train(
            asx.AttentionPaths(heads=settings["heads"], readout="mean"), task.sequences,
            validation=(task.validation_inputs, task.validation_labels),
            validate_every=min(1000, max(1, recipe.steps // 10)), checkpoint=unfinished, progress=parts.progress,
            **options,
        )  # fmt: skip
        if not found.finished:
            raise KeyboardInterrupt(f"{architecture} is not trained to its end")
        return found

    file = f"{recipe.stem(architecture)}.npz"
    return parts.shared(file, make, asx.TrainedPaths.load, lambda found: differs(found, settings))


def differs(found: asx.TrainedPaths, wanted: Mapping[str, object]) -> str:
    """Return a text on how a trained network differs from the ``wanted`` settings; "" if it does not."""
    if not found.finished:
        return "its training was not finished"
    own = {name: found.settings.get(name) for name in IDENTITY}
    return ", ".join(f"{name} {own[name]}, not {wanted[name]}" for name in IDENTITY if own[name] != wanted[name])
