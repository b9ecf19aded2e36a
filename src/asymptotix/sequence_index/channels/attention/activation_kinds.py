"""Codes of the first layer's activation, shared by the two implementations of its channel."""

SOFTMAX, LINEAR = 0, 1
