"""A channel of your own: labels y = sign(z + sqrt(noise) N(0, 1)), z = w.x/sqrt(D), in closed form."""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

import asymptotix as asx


@dataclass(frozen=True)
class NoisyPerceptron(asx.extend.SequenceModel):
    noise: float = 0.1  # a variance, as everywhere; numeric fields become controls of the verbs

    def channel(self):
        return Signs(self.noise)


class Signs(asx.extend.Channel):
    indices = tokens = noises = 1  # P, M, and standard normals of noise per sample
    outputs = 0.0  # no continuous output: exact recovery cannot be had from finitely many signs

    def __init__(self, noise):
        self.noise = noise

    def observe(self, Z, noise):
        return np.sign(Z[:, :, 0] + np.sqrt(self.noise) * noise)

    def posterior(self, observation, omega, V, accuracy=None):
        spread = np.sqrt(V + self.noise)  # (1, 1) or (samples, 1, 1)
        t = observation[:, :, None] * omega / spread
        log_evidence = log_ndtr(t)
        ratio = np.exp(-0.5 * t**2 - log_evidence) / np.sqrt(2 * np.pi)
        shift = V * observation[:, :, None] * ratio / spread
        variance = V - (V / spread) ** 2 * ratio * (ratio + t)
        return asx.extend.Posterior(log_evidence[:, 0, 0], shift, variance[:, :, :, None, None])


if __name__ == "__main__":
    problem = asx.BayesOptimal(NoisyPerceptron(noise=0.1))
    theory = asx.solve(problem, alpha=[0.5, 1.0, 2.0], noise=[0.0, 0.1], tolerance=1e-3, progress=False)
    print(theory.overlap.squeeze().to_pandas().round(3))
