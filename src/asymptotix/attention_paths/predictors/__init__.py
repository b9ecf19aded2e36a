"""Mean and variance of the output at new inputs, for one order parameter or averaged over posterior draws."""
