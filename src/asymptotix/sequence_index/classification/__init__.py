"""Deep attention trained to classify sequences of real tokens, and the order in which its layers converge."""
