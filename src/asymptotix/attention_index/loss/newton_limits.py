"""Constants that control the steps, the backtracking and the end of the Newton iterations of the proximal maps.

numba compiles these numbers into its cache, and renews the cache only when a kernel's own file changes: after an edit
here remove the ``softmax_*`` files in ``__pycache__``.
"""

MOST_STEPS = 100
MOST_HALVINGS = 40
MOST_SHIFTS = 40  # only nan reaches it
ARMIJO = 1e-4  # share of the decrease promised by the slope that a step must bring
LONGEST = 1.0  # largest change of a logit in one step; longer steps leap over narrow minima
SINGULAR = 1e-12  # relative determinant or pivot below which a matrix counts as not positive definite
BENT = 1e-6  # in units of 1/Sigma: a point with a curvature below minus this is a saddle, where no descent ends
FLATTEST = 1e-3  # in units of 1/Sigma: least absolute curvature that a step assumes where it is not positive

# A descent makes its last step when the promised decrease is below RELATIVE * value + ROUNDING * sqrt(value). The sum
# of squares resolves nothing smaller, because each residual is a difference of numbers of order one.
RELATIVE = 1e-13
ROUNDING = 1e-15
