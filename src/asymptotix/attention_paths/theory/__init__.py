"""The order parameter over pairs of paths: its action, the action's minimum, and the likelihood of the labels."""
