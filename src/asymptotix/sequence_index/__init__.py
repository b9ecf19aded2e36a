"""Sequence multi-index models and deep attention: Bayes-optimal learning at n = alpha D."""
