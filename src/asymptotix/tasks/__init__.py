"""Ready-made tasks: a network, training data and test data that belong together."""

from .hidden_markov import HiddenMarkovTask, hidden_markov
from .trec import TrecTask, trec

__all__ = ["HiddenMarkovTask", "TrecTask", "hidden_markov", "trec"]
