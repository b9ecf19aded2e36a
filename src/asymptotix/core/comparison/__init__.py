"""What is said of an experiment beside its theory: differences, how far noise explains them, how they go with size."""
