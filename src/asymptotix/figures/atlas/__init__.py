"""Figures beyond the papers: maps of training and its exponents, outliers of learned spectra, thresholds by shape."""

from .outliers_appearing import outliers, sequential
from .scaling_phases import scaling
from .training_maps import phase_training, power_law, thresholds

__all__ = ["outliers", "phase_training", "power_law", "scaling", "sequential", "thresholds"]
