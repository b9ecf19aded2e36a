"""The loss side of the equations: what a label shows, the proximal map of a loss, and averages over both."""
