"""Tools of all plots: style, colours in use on the axes, kinks of curves at thresholds, labels of thresholds."""
