"""Search for the minimum of a function of one variable. Its values and slopes come with errors and statuses."""
