"""Identification of functions by fingerprints, and types of fields by their annotations."""
