"""Laws of the eigenvalues of the target matrix S_0, and their common base class."""
