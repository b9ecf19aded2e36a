"""Averages without posteriors: draws sorted by their output, where that is one number."""
