"""Exact equations of training and of Bayes-optimal learning in the limit n = alpha d^2, and what is read off."""
