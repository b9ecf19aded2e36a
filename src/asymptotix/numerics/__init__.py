"""What every theory computes with and none owns: averages, fixed points, matrices, precision, memory, checks."""
