"""Gradient descent on all weights of a network, and what is kept of it."""
