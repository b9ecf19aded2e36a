"""All that the figures on images are made of, each part computed once and kept for whoever asks next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

import asymptotix as asx

from ...numerics.threads import available_cores
from ..making.parts import Parts
from .at_widths import OMNIGLOT, Asked, Chosen, answered, asked_of, at_temperatures, chosen, sampled
from .trained_heads import Recipe, trained_network

if TYPE_CHECKING:
    from ...tasks.one_shot import OneShotTask

#: The width at which the order parameter is shown and heads are scored.
NARROW = 10


@dataclass(frozen=True)
class Sampling:
    """Chains of exact sampling: at which widths, and how long."""

    widths: tuple[int, ...]
    chains: int
    warmup: int
    draws: int


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes
    ----------
    recipe : Recipe
        Of the trained networks.
    examples, draws : int
        P, and how many independent sets of as many examples the Bayesian network learns from.
    validation_examples, test_examples : int
        Of Omniglot; the other data sets have as many as the test set, or 2000 where that is less.
    widths, temperatures : tuple of float
        Without the Gaussian-process limit, which is always there.
    sampling : Sampling
    """

    recipe: Recipe
    examples: int
    draws: int
    validation_examples: int
    test_examples: int
    widths: tuple[float, ...]
    temperatures: tuple[float, ...]
    sampling: Sampling

    @property
    def asked(self) -> dict[str, Any]:
        return {"validation_examples": self.validation_examples, "test_examples": self.test_examples}


class ImageParts:
    """Parts of the figures by name of the architecture, kept by `Parts`; data are read when something is missing."""

    def __init__(self, parts: Parts, scale: Scale) -> None:
        self.parts, self.scale = parts, scale
        self._networks: dict[str, asx.TrainedPaths] = {}

    @cached_property
    def task(self) -> OneShotTask:
        return asx.tasks.one_shot(self.scale.examples, **self.scale.asked)

    @cached_property
    def asked(self) -> Asked:
        return asked_of(self.task)

    def learned_from(self, draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of one draw of P examples."""
        return self.task.sequences.examples(self.scale.examples, draw)

    def other(self, seed: int) -> ImageParts:
        """Parts of networks that were trained from another seed, on the same task; one draw of examples for each."""
        scale = replace(self.scale, recipe=replace(self.scale.recipe, seed=seed), draws=1)
        found = ImageParts(self.parts, scale)
        found.__dict__.update({name: self.__dict__[name] for name in ("task", "asked") if name in self.__dict__})
        return found

    def network(self, architecture: str) -> asx.TrainedPaths:
        if architecture not in self._networks:
            self._networks[architecture] = trained_network(self.parts, architecture, self.scale.recipe, self.task)
        return self._networks[architecture]

    def widths(self, architecture: str, widths: Sequence[float] | None = None) -> Chosen:
        """Theory at widths, by default all of the scale and the limit, each draw at the temperatures that it chose."""
        return chosen(self.all_temperatures(architecture, widths))

    def all_temperatures(self, architecture: str, widths: Sequence[float] | None = None) -> list[xr.Dataset]:
        """As `widths`, one table per draw, at all temperatures."""
        return [self.one_draw(architecture, draw, widths) for draw in range(self.scale.draws)]

    def one_draw(self, architecture: str, draw: int, widths: Sequence[float] | None = None) -> xr.Dataset:
        """Of one draw; temperatures are kept as they are done, as many at a time as there are cores."""
        temperatures, step = self.scale.temperatures, available_cores()
        grid = [*self.scale.widths, np.inf] if widths is None else list(widths)

        def make(within: Parts) -> xr.Dataset:
            network = self.network(architecture).network
            problem = asx.PathPosterior(network, *self.learned_from(draw))
            groups = [temperatures[first : first + step] for first in range(0, len(temperatures), step)]
            tables = [
                within.dataset(
                    f"temperatures_{group[0]:g}", {**settings, "temperatures": group},
                    lambda group=group: at_temperatures(problem, group, grid),
                )
                for group in groups
            ]  # fmt: skip
            joined = xr.concat([table.drop_attrs() for table in tables], dim="temperature")
            assert isinstance(joined, xr.Dataset)
            return answered(network, joined, self.asked)

        settings = {"draw": draw, "widths": grid, "temperatures": temperatures, "examples": self.scale.examples}
        name = "widths" if widths is None else f"at_{grid[0]:g}"
        return self._dataset(architecture, f"{name}_{draw}", settings, make)

    def sampled(self, architecture: str, width: int, temperature: float) -> xr.Dataset:
        """Exact sampling of the first draw's posterior."""
        own = self.scale.sampling

        def make(within: Parts) -> xr.Dataset:
            network = self.network(architecture).network
            problem = asx.PathPosterior(network, *self.learned_from(0), temperature=temperature)
            sampler = asx.NUTS(warmup=own.warmup, draws=own.draws)
            runs = within.simulate("chains", problem, sampler, width=float(width), seeds=own.chains)
            return answered(network, sampled(problem, runs), self.asked)

        settings = {"examples": self.scale.examples, "width": width, "temperature": temperature}
        settings |= {name: value for name, value in asdict(own).items() if name != "widths"}
        return self._dataset(architecture, f"sampled_{width}", settings, make)

    def outputs(self, architecture: str) -> xr.Dataset:
        """Output of every path of the trained network on all sets, (example_SET, path), and the labels."""

        def make(_: Parts) -> xr.Dataset:
            trained, found = self.network(architecture), {}
            for name, (inputs, labels) in self.asked.items():
                found[f"outputs_{name}"] = (f"example_{name}", "path"), trained.path_outputs(inputs)
                found[f"labels_{name}"] = f"example_{name}", labels
            return xr.Dataset(found)

        return self._dataset(architecture, "paths", {}, make)

    def base_accuracy(self, architecture: str, name: str = OMNIGLOT) -> tuple[float, float]:
        """Of the trained network with all its heads, in percent, with its error over the examples."""
        found = self.outputs(architecture)
        right = np.sign(found[f"outputs_{name}"].sum("path").values) == np.sign(found[f"labels_{name}"].values)
        share = right.mean()
        return 100 * float(share), 100 * float(np.sqrt(share * (1 - share) / len(right)))

    def _dataset(
        self, architecture: str, name: str, settings: dict[str, Any], make: Callable[[Parts], xr.Dataset]
    ) -> xr.Dataset:
        """A shared part of a network, named after it, and of none that has other weights."""
        name = f"{self.scale.recipe.stem(architecture)}_{name}"
        told = {**settings, **self.scale.asked, "network": fingerprint(self.network(architecture))}
        return self.parts.dataset(name, told, lambda: make(self.parts.within(name, shared=True)), shared=True)


def fingerprint(trained: asx.TrainedPaths) -> str:
    """A few characters that tell the weights from others."""
    digest = hashlib.sha256()
    for layer in (*trained.trained.queries, *trained.trained.keys, *trained.trained.values):
        digest.update(np.ascontiguousarray(layer).tobytes())
    return digest.hexdigest()[:12]
