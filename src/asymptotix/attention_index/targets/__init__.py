"""Laws of the eigenvalues of the target matrix S_0, and what every one of them offers."""
