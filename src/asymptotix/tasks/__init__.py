"""Ready-made tasks: training data with matching test data, and a network if the task has one.

>>> import asymptotix as asx
>>> data = asx.tasks.hidden_markov(examples=10, seed=0)
>>> data.inputs.shape, data.labels.shape, data.network.heads
((10, 31, 231), (10,), (2, 2))
"""

from .hidden_markov import HiddenMarkovTask, hidden_markov
from .one_shot import ImageSequences, OneShotTask, one_shot
from .trec import TrecTask, trec

__all__ = ["HiddenMarkovTask", "ImageSequences", "OneShotTask", "TrecTask", "hidden_markov", "one_shot", "trec"]
