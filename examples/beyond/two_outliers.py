"""Strong directions of the target become outliers of the learned spectrum: their eigenvalues and overlaps.

    python examples/beyond/two_outliers.py 50

The target has spikes 9 and 6 on a bulk of half rank; there are two tokens and a softmax. Eigenvalues and overlaps of
the learned outliers by theory, at the dimension of the experiment, are compared with four runs of Adam. The distance
falls with the dimension: try 100.
"""

import sys

import asymptotix as asx

ALPHAS = [0.05, 0.2, 1.0]


def main() -> None:
    dim = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    target = asx.Spiked(asx.MarchenkoPastur(0.5), (9.0, 6.0), dim=dim)
    problem = asx.RiskMinimization(asx.AttentionIndex(tokens=2, target=target, noise=0.5), weight_decay=0.01)
    theory = asx.solve(problem, alpha=ALPHAS, progress=False).outliers()
    runs = asx.simulate(problem, asx.Adam(), alpha=ALPHAS, dim=dim, seeds=4, progress=False).outliers()
    for alpha in ALPHAS:
        for k in range(2):
            one, seen = theory.sel(alpha=alpha).isel(spike=k), runs.sel(alpha=alpha).isel(spike=k)
            words = [f"alpha = {alpha}, spike {float(one.theta):g}:"]
            for name in ("eigenvalue", "overlap"):
                over_seeds = seen[name].squeeze()
                mean, error = float(over_seeds.mean("seed")), float(over_seeds.std("seed", ddof=1)) / 2
                words.append(f"{name} {mean:.3f} +- {error:.3f}, theory {float(one[name]):.3f};")
            print(*words)


if __name__ == "__main__":
    main()
