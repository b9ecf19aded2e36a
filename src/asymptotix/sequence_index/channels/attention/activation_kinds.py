"""Codes of the first layer's activation, shared by the two implementations of the two-layer channel."""

SOFTMAX, LINEAR = 0, 1
