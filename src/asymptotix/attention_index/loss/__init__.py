"""The loss side of the equations: visible directions of an output, the proximal map of a loss, and averages."""
