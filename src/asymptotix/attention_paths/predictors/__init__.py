"""Mean and variance of the output at new inputs, at an order parameter or over draws of the posterior."""
