"""Descriptions of functions by fingerprints, and of fields by their declared types."""
