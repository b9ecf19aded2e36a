"""Experiments at finite dimension: data, training with Adam, and matrix message passing."""
