#!/bin/sh
# What an installed asymptotix must do, nothing else being there: import, a point of each theory, the command line.
# Called with the directory of its Python, from outside the clone.
set -eu
"$1/python" -W error::ResourceWarning - <<'PYTHON'
import sys
from pathlib import Path

import asymptotix as asx

assert "site-packages" in Path(asx.__file__).parts, asx.__file__
assert "jax" not in sys.modules, "import asymptotix imports JAX"
assert all(hasattr(asx, name) for name in asx.__all__)

limits = asx.thresholds(asx.BayesOptimal(asx.DeepAttention(layers=1, tokens=2)), progress=False)
assert abs(float(limits.weak_recovery.max()) - 1 / 6) < 1e-6, limits.weak_recovery.values

training = asx.RiskMinimization(asx.AttentionIndex(tokens=2, noise=0.5), weight_decay=0.01)
point = asx.solve(training, alpha=1.0, progress=False)
assert point.ok, point.status.values

data = asx.tasks.hidden_markov(examples=20, seed=0)
paths = asx.solve(asx.PathPosterior(data.network, data.inputs, data.labels, temperature=0.01), width=10.0, progress=False)
assert paths.ok, paths.status.values
print("a point of each theory: ok,", asx.__version__)
PYTHON
"$1/asymptotix" --help > /dev/null
"$1/asymptotix" reproduce > /dev/null
echo "the command line: ok"
