"""The figures of the three papers, recomputed, each with a verdict; and an atlas of further figures.

>>> import asymptotix as asx
>>> made = asx.figures.training.fig2(size="quick")                      # doctest: +SKIP
>>> made.figure.axes[0].set_title("mine")                               # doctest: +SKIP

The command ``asymptotix reproduce`` lists all figures.
"""

from . import atlas, deep, images, paths, training
from .making.registry import FIGURES
from .making.reproduction import Reproduction

__all__ = ["FIGURES", "Reproduction", "atlas", "deep", "images", "paths", "training"]
