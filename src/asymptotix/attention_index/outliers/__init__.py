"""Outliers: how single eigenvalues of the target appear in the learned spectrum, and from which alpha on."""
