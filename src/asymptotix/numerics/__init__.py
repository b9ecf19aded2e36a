"""Numerical tools shared by all theories: averages, fixed points, matrices, precision, memory, checks."""
