"""The one search for the place at which a function is least, whose values and slopes have errors and statuses."""
