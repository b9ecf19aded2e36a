"""Deep multi-head attention at finite width: Bayesian learning through attention paths."""
