"""Gradient descent on all weights of a network, and the trained network."""
