"""Removing the quarter of the heads with the least scores costs more than a marginal loss: Omniglot, 2 x 8 heads.

    asymptotix data get omniglot
    python examples/errata/head_pruning.py [STEPS] [NETWORKS]

Published: Tiberi et al., arXiv:2405.15926, section 4.2.1 and Fig. 7: a quarter of the heads can be removed at a
marginal loss, from two layers of four heads and equally of eight heads. Here several networks are trained as published
(41,240 steps: two minutes each on a large GPU, hours on two cores). The theory at width 10 scores the heads, and the
quarter with the least scores is removed.
"""

import sys

import numpy as np

import asymptotix as asx


def main(steps: int = 41_240, networks: int = 3) -> None:
    task = asx.tasks.one_shot(600, validation_examples=2000, test_examples=4000)
    lost = []
    for seed in range(networks):
        trained = asx.train(
            asx.AttentionPaths(heads=[8, 8], readout="mean"), task.sequences, key_size=64, steps=steps, seed=seed,
            validation=(task.validation_inputs, task.validation_labels), validate_every=max(1, min(1000, steps // 10)),
        )  # fmt: skip
        problem = asx.PathPosterior(trained.network, task.inputs, task.labels, temperature=0.5)
        scores = asx.head_scores(asx.solve(problem, width=10.0, progress=False)).values.reshape(2, 8)
        least = [(int(k) // 8, int(k) % 8) for k in np.argsort(scores, axis=None)[:4]]
        before, after = (
            100 * float(network.evaluate(task.test_inputs, task.test_labels)["accuracy"])
            for network in (trained, asx.prune(trained, least))
        )
        lost.append(before - after)
        print(f"network {seed}: {before:.1f} % with all heads, {after:.1f} % without {len(least)} of 16", flush=True)
    print(f"published: marginal; found: a loss of {np.mean(lost):.1f} points on average over {networks} networks")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
