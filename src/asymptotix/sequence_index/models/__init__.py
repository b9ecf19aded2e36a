"""Models that generate the data, and their forward maps from index rows to outputs."""
