"""Programs of functions that the user writes: compiled, kept as they were, and listed."""
