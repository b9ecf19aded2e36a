"""The order parameter over pairs of paths: its action, the minimum of it, and the likelihood of the labels."""
