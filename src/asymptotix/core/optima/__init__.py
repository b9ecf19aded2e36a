"""Search for the minimum of a function of one variable whose values and slopes have errors and statuses."""
