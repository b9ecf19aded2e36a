"""Channels of links that users write, one file for every method that computes the posterior."""
