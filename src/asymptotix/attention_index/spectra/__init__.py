"""Laws of eigenvalues: the free convolution of a target with a semicircle, and the learned matrix."""
