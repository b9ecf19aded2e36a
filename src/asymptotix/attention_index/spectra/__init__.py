"""Laws of eigenvalues: targets S_0, their free convolution with a semicircle, and the learned matrix."""
