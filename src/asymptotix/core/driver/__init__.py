"""What works through a table of points behind the verbs: the driver, resuming, checkpoints."""
