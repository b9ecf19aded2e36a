"""Message passing on links of one's own at D = 300: twelve runs in a minute on two cores, at the overlaps of theory."""

from time import monotonic, process_time

import jax.numpy as jnp
import pytest

from asymptotix import GAMP, BayesOptimal, MultiIndex, compare, simulate, solve
from asymptotix.core.progress import Progress


class Timed(Progress):
    """When the first line was announced."""

    first: float | None = None

    def announce(self, text: str) -> None:
        self.first = self.first or monotonic()
        super().announce(text)


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")  # at this size some runs fluctuate
@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        (MultiIndex(lambda z: jnp.sign(z[0]) * z[1], 2, 0.01), 120),
        (MultiIndex(lambda z: z[0] * z[1], 2), 120),
        (MultiIndex(lambda z: z[0] * z[1], 2, 0.1), 120),
        (MultiIndex(lambda z: z[0] ** 2 + 3 * z[1] ** 2, 2), 120),
        (MultiIndex(lambda z: z[0] * z[1] * z[2], 3, 0.1), 120),
    ],
)
def test_twelve_runs(model, seconds):
    """``seconds`` of CPU time: two cores for a minute are 120."""
    problem = BayesOptimal(model)
    with Timed(None, "runs") as progress:
        begun, cpu = monotonic(), process_time()
        runs = simulate(problem, GAMP(), alpha=[0.4, 0.8, 1.6], dim=300, seeds=4, progress=progress)
        assert process_time() - cpu < seconds
    if progress.first is not None:  # nothing is announced of what takes a few seconds
        assert progress.first - begun < 5
    assert (runs.status_code != "failed").all()
    theory = solve(problem, alpha=[0.4, 0.8, 1.6], tolerance=1e-2, progress=False)
    assert abs(compare(theory, runs).ds.overlap_z).max() < 4  # of 18 to 27 entries
