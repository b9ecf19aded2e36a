"""Sweeps too large for one machine: work cut into chunks, a store that survives any crash, and executors."""
