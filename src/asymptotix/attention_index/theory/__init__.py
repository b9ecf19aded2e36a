"""Equations of training and Bayes-optimal learning, exact in the limit n = alpha d^2, and observables of solutions."""
