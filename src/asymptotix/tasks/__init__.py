"""Ready-made tasks: a network, training data and test data that belong together."""

from .hidden_markov import HiddenMarkovTask, hidden_markov

__all__ = ["HiddenMarkovTask", "hidden_markov"]
