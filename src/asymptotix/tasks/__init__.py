"""Ready-made tasks: training data and test data that belong together, and a network where the task has one."""

from .hidden_markov import HiddenMarkovTask, hidden_markov
from .one_shot import ImageSequences, OneShotTask, one_shot
from .trec import TrecTask, trec

__all__ = ["HiddenMarkovTask", "ImageSequences", "OneShotTask", "TrecTask", "hidden_markov", "one_shot", "trec"]
