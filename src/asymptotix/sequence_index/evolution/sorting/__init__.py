"""Averages without posteriors: draws brought together by their output, where that is few numbers."""
