"""Comparison of an experiment with its theory: differences, their significance, and their trend with the size dim."""
