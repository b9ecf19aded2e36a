"""The penalty on the spectrum of the learned matrix, and the averages over the spectrum that follow from it."""
