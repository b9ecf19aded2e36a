"""Thresholds of state evolution: where each direction starts to be learned, and where everything is recovered."""
