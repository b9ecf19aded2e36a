"""Base classes for new models, channels, theories and algorithms, and the objects that their methods return.

>>> from dataclasses import dataclass
>>> import asymptotix as asx
>>> @dataclass(frozen=True)
... class Square(asx.extend.Problem):
...     controls = ("alpha",)
...     def solve_points(self, points, *, start, tolerance, progress):
...         for position, point in enumerate(points):
...             yield position, asx.extend.Outcome({"overlap": point["alpha"] ** 2})
>>> asx.solve(Square(), alpha=[1.0, 2.0], progress=False).overlap.values.tolist()
[1.0, 4.0]
"""

from __future__ import annotations

from .core.definitions.observable import Observable as Observable
from .core.problem import Algorithm as Algorithm
from .core.problem import Outcome as Outcome
from .core.problem import Problem as Problem
from .core.progress import Progress as Progress
from .core.specification import Specification as Specification
from .core.status import Status as Status
from .sequence_index.channels.choose import SequenceModel as SequenceModel
from .sequence_index.channels.protocol import Accuracy as Accuracy
from .sequence_index.channels.protocol import Channel as Channel
from .sequence_index.channels.protocol import Posterior as Posterior

__all__ = [
    "Accuracy", "Algorithm", "Channel", "Observable", "Outcome", "Posterior", "Problem", "Progress", "SequenceModel",
    "Specification", "Status",
]  # fmt: skip
