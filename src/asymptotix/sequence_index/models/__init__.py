"""Descriptions of what generates the data, and their forward maps from index rows to outputs."""
