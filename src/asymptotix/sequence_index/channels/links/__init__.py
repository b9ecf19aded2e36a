"""Channels of a link of the user's own, one file for every way to compute its posterior."""
