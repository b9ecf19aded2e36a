"""All results for the figures on images; each is computed once and stored for every figure that needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
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

#: Width N at which the order parameter is shown and heads are scored.
NARROW = 10


@dataclass(frozen=True)
class Sampling:
    """Settings of exact sampling: widths, number of chains, warm-up iterations and draws of each chain."""

    widths: tuple[int, ...]
    chains: int
    warmup: int
    draws: int


@dataclass(frozen=True)
class Scale:
    """Size of the experiment.

    Attributes
    ----------
    recipe : Recipe
        Training of the networks.
    examples, draws : int
        Number P of training examples of the Bayesian network, and number of independent sets of P examples.
    validation_examples, test_examples : int
        Numbers of Omniglot examples; the other data sets have as many as the test set, but at most 2000.
    widths, temperatures : tuple of float
        Finite widths (the Gaussian-process limit is always added) and temperatures.
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
    """Results for the figures by architecture, such as "L2H4", stored by ``parts``; data are read only if needed."""

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
        """Return inputs and labels of draw number ``draw`` of P training examples."""
        return self.task.sequences.examples(self.scale.examples, draw)

    def other(self, seed: int) -> ImageParts:
        """Return the results for networks trained from another ``seed`` on the same task, with one draw of examples."""
        scale = replace(self.scale, recipe=replace(self.scale.recipe, seed=seed), draws=1)
        found = ImageParts(self.parts, scale)
        found.__dict__.update({name: self.__dict__[name] for name in ("task", "asked") if name in self.__dict__})
        return found

    def network(self, architecture: str) -> asx.TrainedPaths:
        if architecture not in self._networks:
            self._networks[architecture] = trained_network(self.parts, architecture, self.scale.recipe, self.task)
        return self._networks[architecture]

    def widths(self, architecture: str, widths: Sequence[float] | None = None) -> Chosen:
        """Return theory at ``widths``, each draw at its best temperatures; by default at all widths and the limit."""
        return chosen(self.all_temperatures(architecture, widths))

    def all_temperatures(self, architecture: str, widths: Sequence[float] | None = None) -> list[xr.Dataset]:
        """Return theory like `widths`, but at all temperatures, as one table per draw."""
        return [self.one_draw(architecture, draw, widths) for draw in range(self.scale.draws)]

    def one_draw(self, architecture: str, draw: int, widths: Sequence[float] | None = None) -> xr.Dataset:
        """Return theory at ``widths`` and all temperatures for one draw: a table (temperature, width, ...).

        Intermediate results are stored in groups of one temperature per core.
        """
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
        """Return exact sampling of the posterior of the first draw of examples, from `at_widths.sampled`."""
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
        """Return ``outputs_SET`` (example_SET, path) of the trained network's paths, and ``labels_SET``."""

        def make(_: Parts) -> xr.Dataset:
            trained, found = self.network(architecture), {}
            for name, (inputs, labels) in self.asked.items():
                found[f"outputs_{name}"] = (f"example_{name}", "path"), trained.path_outputs(inputs)
                found[f"labels_{name}"] = f"example_{name}", labels
            return xr.Dataset(found)

        return self._dataset(architecture, "paths", {}, make)

    def base_accuracy(self, architecture: str, name: str = OMNIGLOT) -> tuple[float, float]:
        """Return the accuracy of the trained network with all heads on the set ``name``, in percent, and its error."""
        found = self.outputs(architecture)
        right = np.sign(found[f"outputs_{name}"].sum("path").values) == np.sign(found[f"labels_{name}"].values)
        share = right.mean()
        return 100 * float(share), 100 * float(np.sqrt(share * (1 - share) / len(right)))

    def _dataset(
        self, architecture: str, name: str, settings: Mapping[str, object], make: Callable[[Parts], xr.Dataset]
    ) -> xr.Dataset:
        """Return a shared dataset of a network, from ``make``, or from its file if that has the same weights."""
        name = f"{self.scale.recipe.stem(architecture)}_{name}"
        told = {**settings, **self.scale.asked, "network": fingerprint(self.network(architecture))}
        return self.parts.dataset(name, told, lambda: make(self.parts.within(name, shared=True)), shared=True)


def fingerprint(trained: asx.TrainedPaths) -> str:
    """Return a checksum (12 hexadecimal digits) of the trained queries, keys and values."""
    digest = hashlib.sha256()
    for layer in (*trained.trained.queries, *trained.trained.keys, *trained.trained.values):
        digest.update(np.ascontiguousarray(layer).tobytes())
    return digest.hexdigest()[:12]
