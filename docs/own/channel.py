"""A channel of your own: labels y = sign(z + sqrt(noise) N(0, 1)), z = w.x/sqrt(D), in closed form."""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

import asymptotix as asx
from asymptotix.sequence_index.channels.protocol import DEFAULT_ACCURACY, Channel, Posterior
from asymptotix.sequence_index.evolution.fixed_points import StateEvolution
from asymptotix.sequence_index.theory import SequenceIndexTheory


@dataclass(frozen=True)
class NoisyPerceptron(asx.Specification):
    """The description: fields with their defaults. Numeric ones become controls of the verbs."""

    noise: float = 0.1  # a variance, as everywhere

    def bayes_optimal_theory(self) -> type:
        return NoisyPerceptronTheory


class NoisyPerceptronChannel(Channel):
    """What an observed sign says about z ~ N(omega, V). Arrays carry (samples, indices P = 1, tokens M = 1)."""

    indices, tokens = 1, 1
    outputs = 0.0  # no continuous output: exact recovery cannot be had from finitely many signs
    diagonal = False  # True where every index may change its sign unseen; here the sign is what is seen
    noises = 1  # one standard normal of noise per sample

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def observe(self, Z, noise=None):
        if noise is None:
            noise = np.zeros((len(Z), 1))
        return np.sign(Z[:, :, 0] + np.sqrt(self.noise) * noise)

    def model_output(self, Z):
        return np.sign(Z[:, :, 0])

    def posterior(self, observation, omega, V, accuracy=DEFAULT_ACCURACY):
        spread = np.sqrt(V + self.noise)  # (1, 1) or (n, 1, 1)
        t = observation[:, :, None] * omega / spread
        log_evidence = log_ndtr(t)
        ratio = np.exp(-0.5 * t**2 - log_evidence) / np.sqrt(2 * np.pi)
        shift = V * observation[:, :, None] * ratio / spread
        variance = V - (V / spread) ** 2 * ratio * (ratio + t)
        return Posterior(log_evidence[:, 0, 0], shift, variance[:, :, :, None, None])


class NoisyPerceptronTheory(SequenceIndexTheory):
    """State evolution, thresholds and errors follow from the channel."""

    def __init__(self, problem) -> None:
        self.problem = problem
        self.channel = NoisyPerceptronChannel(problem.model.noise)
        self.state_evolution = StateEvolution(self.channel, problem.side_information)


if __name__ == "__main__":
    problem = asx.BayesOptimal(NoisyPerceptron(noise=0.1))
    theory = asx.solve(problem, alpha=[0.5, 1.0, 2.0], noise=[0.0, 0.1], tolerance=1e-3, progress=False)
    print(theory.overlap.squeeze().to_pandas().round(3))
