"""Draws from the exact posterior at finite width, of order parameters or of weights."""
