"""When the Newton iterations of the proximal maps step, backtrack and stop.

numba compiles these numbers into its cache, which it renews when a kernel's own file changes: after an edit here remove
the ``softmax_*`` files in ``__pycache__``.
"""

MOST_STEPS = 100
MOST_HALVINGS = 40
MOST_SHIFTS = 40  # reached by nan only
ARMIJO = 1e-4  # a step must bring this share of the decrease that the slope promises
LONGEST = 1.0  # no logit changes by more in one step: a longer one leaps over narrow minima
SINGULAR = 1e-12  # a relative determinant or pivot below it counts as not positive definite
BENT = 1e-6  # a descent does not end where some curvature is below minus this, in units of 1/Sigma: that is a saddle
FLATTEST = 1e-3  # least absolute curvature assumed where it is not positive, in units of 1/Sigma

# One more step is taken, and then no other, once the promised decrease is below RELATIVE * value + ROUNDING *
# sqrt(value): the sum of squares resolves no less, since each residual is a difference of numbers of order one.
RELATIVE = 1e-13
ROUNDING = 1e-15
