"""A theory of your own: ridge regression in the limit of many dimensions, and its estimator at finite size."""

from dataclasses import dataclass

import numpy as np

import asymptotix as asx


@dataclass(frozen=True)
class Ridge(asx.extend.Problem):
    """Minimise sum (y - w.x/sqrt(D))^2 + weight_decay |w|^2, where y = w*.x/sqrt(D) + sqrt(noise) N(0, 1).

    n = alpha D samples, inputs and teacher N(0, I). The equations are those of a quadratic risk,

        weight_decay V^2 + (weight_decay + alpha - 1) V = 1,     A = alpha/(1 + V),
        estimation_error = (weight_decay^2 + A^2 noise/alpha) / ((weight_decay + A)^2 - A^2/alpha).
    """

    noise: float = 0.1
    weight_decay: float = 0.1
    controls = ("alpha",)  # what solve needs besides the fields above

    def solve_points(self, points, *, start, tolerance, progress):
        for position, point in enumerate(points):  # in any order, as they finish
            alpha, decay = point["alpha"], self.weight_decay
            half = 0.5 * (decay + alpha - 1)
            A = alpha / (1 + (np.sqrt(half**2 + decay) - half) / decay)
            error = (decay**2 + A**2 * self.noise / alpha) / ((decay + A) ** 2 - A**2 / alpha)
            values = {"estimation_error": error, "test_error": error + self.noise}
            yield position, asx.extend.Outcome(values | {f"{name}_err": 1e-12 for name in values})


@dataclass(frozen=True)
class LeastSquares(asx.extend.Algorithm):
    """The minimum itself. The draws of a run depend on its seed, dim and point only."""

    def run_points(self, problem, points, *, dim, seeds, progress):
        for i, point in enumerate(points):
            for j, seed in enumerate(seeds):
                samples = max(round(point["alpha"] * dim), 1)
                rng = np.random.default_rng([seed, dim, samples])
                X, teacher = rng.standard_normal((samples, dim)) / np.sqrt(dim), rng.standard_normal(dim)
                y = X @ teacher + np.sqrt(problem.noise) * rng.standard_normal(samples)
                w = np.linalg.solve(X.T @ X + problem.weight_decay * np.eye(dim), X.T @ y)
                error = float(((w - teacher) ** 2).mean())
                yield i, j, asx.extend.Outcome({"estimation_error": error, "test_error": error + problem.noise})


if __name__ == "__main__":
    theory = asx.solve(Ridge(), alpha=[0.5, 1.0, 2.0], weight_decay=[0.01, 0.1], progress=False)
    runs = asx.simulate(Ridge(), LeastSquares(), alpha=[0.5, 2.0], dim=200, seeds=8, progress=False)
    print(asx.compare(theory.sel(weight_decay=0.1), runs).table())
    theory.save("ridge.nc")
    print(asx.load("ridge.nc", problem=Ridge()))
