"""Single eigenvalues of the target as outliers of the learned spectrum: what they become, and from how many samples."""
