"""What one observation says about the index rows: the posterior of every model, and which model gets which."""
