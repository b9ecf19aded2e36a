"""State evolution: averages over data, the iteration of overlaps, its fixed points and their errors."""
