"""Parts that all plots share: colours and labels in use on the axes, kinks of curves, labels of thresholds."""
