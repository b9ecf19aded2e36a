"""What files know of functions, and of the types that fields declare."""
