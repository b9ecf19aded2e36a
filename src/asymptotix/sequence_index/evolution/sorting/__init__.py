"""Averages without posteriors, for outputs of few numbers: from draws grouped by their output."""
