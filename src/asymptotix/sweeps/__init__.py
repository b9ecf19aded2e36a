"""Sweeps that outgrow one machine: work cut into chunks, a store that survives whatever dies, and who does the work."""
