"""A model of your own: any link y = g(z) of the indices z = W x / sqrt(D), here phase retrieval y = z^2.

    python examples/own_link.py

The method that computes posteriors (the channel) is chosen automatically; `problem.theory.channel.description` names
it and the reason. The script then computes thresholds, the exact learning curve and message passing.
"""

import asymptotix as asx

NAMES = ("weak_recovery", "exact_recovery", "exact_recovery_informed")


def main() -> None:
    problem = asx.BayesOptimal(asx.MultiIndex(lambda z: z[0] ** 2, indices=1))
    print("channel:", problem.theory.channel.description)
    limits = asx.thresholds(problem)
    weak, exact, stable = (float(limits[name].max()) for name in NAMES)
    print(f"learned above alpha = {weak:.4f}, exactly above {exact:.3f}; exact recovery is stable above {stable:.3f}")
    theory = asx.solve(problem, alpha=[0.4, 0.8, 1.0, 1.3])
    runs = asx.simulate(problem, asx.GAMP(iterations=40), alpha=[0.4, 1.0, 1.3], dim=1000, seeds=4)
    print(asx.compare(theory, runs).table())


if __name__ == "__main__":
    main()
