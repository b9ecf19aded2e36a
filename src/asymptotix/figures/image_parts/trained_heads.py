"""Networks trained by gradient descent, each in a file that several figures share.

A file is named for what is in it. One that was trained on another machine is taken as if it had been trained here: put
it into the folder ``shared`` beside those of the figures.

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

#: Name -> layers and heads of each; keys have the size N/H, as in print: 128, 64 and 170 at N = 512.
ARCHITECTURES = {"L2H4": (2, 4), "L2H8": (2, 8), "L3H3": (3, 3)}
#: What must be equal in a file that is taken; the rest (how often it was validated, say) is not part of the experiment.
IDENTITY = ("heads", "width", "key_size", "steps", "batch", "learning_rate", "weight_decay", "seed")


@dataclass(frozen=True)
class Recipe:
    """How a network is trained; the validation examples are those of the task that it is trained on."""

    width: int
    steps: int
    batch: int = 128
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    seed: int = 0

    def settings_of(self, architecture: str) -> dict[str, Any]:
        """As `asx.train` knows them."""
        layers, heads = ARCHITECTURES[architecture]
        return {"heads": [heads] * layers, "key_size": self.width // heads, **asdict(self)}

    def stem(self, architecture: str) -> str:
        """What the file is called, and the files of what is computed of it begin with."""
        return f"{architecture}_N{self.width}_{self.steps}_steps"


def trained_network(parts: Parts, architecture: str, recipe: Recipe, task: OneShotTask) -> asx.TrainedPaths:
    """The network of a name: from its file, or trained now, going on where an earlier call was stopped."""
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


def differs(found: asx.TrainedPaths, wanted: Mapping[str, Any]) -> str:
    """In what a trained network is another than the one that is asked for, in words."""
    if not found.finished:
        return "its training was not finished"
    own = {name: found.settings.get(name) for name in IDENTITY}
    return ", ".join(f"{name} {own[name]}, not {wanted[name]}" for name in IDENTITY if own[name] != wanted[name])
