"""Single-head attention of extensive rank, n = alpha d^2: regularised training, Bayes-optimal learning, spectra."""
