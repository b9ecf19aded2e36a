"""What all plots share: which colours and labels are taken on some axes, kinks of curves, labels of thresholds."""
