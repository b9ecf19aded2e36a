"""Channels: the posterior of a sample's index rows given its output, for every model, and the choice of the channel."""
