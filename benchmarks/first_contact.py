"""Waiting time of a new user: the import, and the first curve of each theory, each in a separate process.

    python benchmarks/first_contact.py

Each line also has the time spent on imports, and the time of a second call in the same process: the difference between
first and second call is compilation.
"""

from __future__ import annotations

import os
import subprocess
import sys

IMPORT = "import asymptotix, sys; loaded = [m for m in ('jax', 'numba', 'matplotlib', 'scipy') if m in sys.modules]"

CURVES = {
    "Bayes-optimal, two layers, 32 alphas": """
problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
work = lambda: asx.solve(problem, alpha=np.linspace(0.05, 1.6, 32), progress=False)
""",
    "training, 24 alphas": """
task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)
problem = asx.RiskMinimization(task, weight_decay=0.01)
work = lambda: asx.solve(problem, alpha=np.geomspace(0.05, 40, 24), progress=False)
""",
    "attention paths, 4 widths": """
data = asx.tasks.hidden_markov(examples=100, seed=0)
problem = asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01)
work = lambda: asx.solve(problem, width=[10, 100, 1000, np.inf], progress=False)
""",
}

TIMED = """
import time
began = time.perf_counter()
import warnings
warnings.simplefilter("ignore")
import numpy as np
import asymptotix as asx
{setting}
loaded = time.perf_counter()
work()
first = time.perf_counter()
work()
print(first - began, loaded - began, first - loaded, time.perf_counter() - first)
"""


def run(code: str) -> tuple[list[str], str]:
    """Run code in a fresh process; return the words that it prints, and its output on stderr."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    return done.stdout.split(), done.stderr.strip()


def main() -> None:
    timed = f"import time; t = time.perf_counter(); {IMPORT}; print(time.perf_counter() - t, *loaded)"
    seconds = []
    for _ in range(5):
        (took, *loaded), noise = run(timed)
        seconds.append(float(took))
    print(f"import asymptotix: {sorted(seconds)[2]:.3f} s (of five, the median); loads {' '.join(loaded) or 'none'} of")
    print(f"    JAX, numba, matplotlib, scipy; says {noise!r}")
    for name, setting in CURVES.items():
        words, noise = run(TIMED.format(setting=setting))
        whole, imports, cold, warm = map(float, words)
        parts = f"{imports:.1f} until it is described, {cold:.1f} solving"
        print(f"{name}: {whole:.1f} s ({parts}), again {warm:.2f} s; says {noise!r}", flush=True)


if __name__ == "__main__":
    main()
