"""Files that version 0.1 wrote: they load, they open in plain xarray, and today's code gives the same numbers."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.dataset.assemble import RESERVED

FOLDER = Path(__file__).parents[1] / "fixtures" / "saved_by_0_1"
#: Theory is computed in double precision from fixed nodes: another machine differs in the rounding, which iteration
#: to a fixed point may amplify a little.
EXACT = 1e-9
#: Fixed points of state evolution that are iterated until a share of the tolerance (1e-2 in these files) is reached:
#: another rounding may end an iteration earlier.
ITERATED = 1e-5
#: Fixed points of training, iterated until one more step moves the logarithms of the order parameters by 1e-8.
SETTLED = 1e-7
#: Experiments run in single precision, whose rounding of 6e-8 depends on the order of sums, which is the machine's
#: own; a few iterations amplify it.
SINGLE = 1e-4
#: Integrals of two layers are cut into other cells than they were: what cells leave is 4e-5 of the free entropy, a
#: twentieth of its stated error.
CELLS = 1e-4
#: Sixty steps of Adam divide by the root of a small mean square, which amplifies the rounding further.
ADAM = 1e-3
#: A cosine without the norm of the teacher, which is not reported any more.
GONE = {"published_cosine", "published_cosine_trace"}
#: What a run took is its own.
CLOCK = ("cpu_seconds",)
#: Averaged otherwise today, one index by quadrature, two layers by another cubature, errors of predictions over other
#: nodes: the same within three of the errors of then and now.
OTHER_NODES = ("test_error", "plugin_error")
OTHERWISE = ("theory_link", "theory_swept_layers", "theory_swept_skip", "theory_two_layers")


def square(z):
    return z[0] ** 2


# name: (kind, problem, algorithm, how the points ended, relative accuracy, whether it takes more than three seconds)
SAVED = {
    "adam": ("experiment", "RiskMinimization", "Adam", "finished, loss still falling", ADAM, True),
    "gamp": ("experiment", "BayesOptimal", "GAMP", "finished, still moving", SINGLE, True),
    "gamp_side_information": ("experiment", "BayesOptimal", "GAMP", "finished, still moving", SINGLE, True),
    "matrix_amp": ("experiment", "RiskMinimization", "MatrixAMP", "finished, S still moving", SINGLE, False),
    "matrix_amp_bayes": ("experiment", "BayesOptimal", "MatrixAMP", "finished, S still moving", SINGLE, False),
    # A chain is chaotic: its draws agree on one machine only, and are not compared.
    "nuts": ("experiment", "PathPosterior", "NUTS", "R-hat", None, False),
    "relaxed_bp": ("experiment", "BayesOptimal", "RelaxedBP", "finished", SINGLE, False),
    "sgd": ("experiment", "BayesOptimal", "SGD", "finished, overlap still moving", SINGLE, True),
    "theory_bayes_attention": ("theory", "BayesOptimal", None, "converged", EXACT, False),
    "theory_infinite_depth": ("theory", "BayesOptimal", None, "converged", EXACT, False),
    "theory_link": ("theory", "BayesOptimal", None, "converged", ITERATED, True),
    "theory_one_layer": ("theory", "BayesOptimal", None, "converged|exact recovery", EXACT, False),
    "theory_paths": ("theory", "PathPosterior", None, "converged|Gaussian-process limit", EXACT, False),
    "theory_paths_attended": ("theory", "PathPosterior", None, "converged", EXACT, False),
    "theory_rank_two": ("theory", "BayesOptimal", None, "converged: nothing is learned", ITERATED, True),
    "theory_swept_layers": ("theory", "BayesOptimal", None, "converged: nothing is learned", CELLS, True),
    "theory_swept_skip": ("theory", "BayesOptimal", None, "converged: nothing is learned", CELLS, True),
    "theory_training": ("theory", "RiskMinimization", None, "converged", SETTLED, False),
    "theory_training_atoms": ("theory", "RiskMinimization", None, "converged", SETTLED, False),
    "theory_training_empirical": ("theory", "RiskMinimization", None, "converged", SETTLED, False),
    "theory_training_full": ("theory", "RiskMinimization", None, "converged", SETTLED, False),
    "theory_training_power_law": ("theory", "RiskMinimization", None, "converged", SETTLED, True),
    "theory_training_three_tokens": ("theory", "RiskMinimization", None, "converged", ITERATED, True),
    "theory_two_layers": ("theory", "BayesOptimal", None, "converged", ITERATED, True),
    "thresholds_linear": ("thresholds", "BayesOptimal", None, "converged", EXACT, False),
    "thresholds_one_layer": ("thresholds", "BayesOptimal", None, "converged", EXACT, False),
    "thresholds_training": ("thresholds", "RiskMinimization", None, "converged", EXACT, False),
}
#: How far a number may lie from the root that it approximates: minimisers are found where a gradient vanishes.
AT_A_MINIMUM = {"gradient_norm": 1e-6}


def read(name: str) -> asx.Result:
    """A function of one's own is not in the file and must be given."""
    problem = asx.BayesOptimal(asx.MultiIndex(square, indices=1)) if name == "theory_link" else None
    return asx.load(FOLDER / f"{name}.nc", problem=problem)


def computed_anew(old: asx.Result) -> asx.Result:
    grids = {str(name): values.values for name, values in old.ds.coords.items() if values.dims == (name,)}
    seeds = grids.pop("seed", np.zeros(0)).tolist()
    if old.kind == "theory":
        return asx.solve(old.problem, progress=False, **grids, **old.settings)
    if old.kind == "thresholds":
        return asx.thresholds(old.problem, progress=False, **grids, **old.settings)
    assert old.algorithm is not None
    size = {"dim": int(old.dim)} if "dim" in old.ds.coords else {}
    return asx.simulate(old.problem, old.algorithm, seeds=seeds, progress=False, **size, **grids)


def test_no_file_is_forgotten():
    assert {path.stem for path in FOLDER.glob("*.nc")} == set(SAVED)


@pytest.mark.parametrize("name", SAVED)
def test_file_is_understood(name):
    kind, problem, algorithm, status, _, _ = SAVED[name]
    old = read(name)
    assert old.kind == kind
    assert type(old.problem).__name__ == problem
    assert algorithm == (None if old.algorithm is None else type(old.algorithm).__name__)
    for words in old.status.values.ravel():
        assert words.startswith(tuple(status.split("|")))
    assert old.converged.dtype == bool
    assert old.provenance["asymptotix"].startswith("0.1")
    with xr.open_dataset(FOLDER / f"{name}.nc") as plain:  # what does not know of asymptotix reads the same numbers
        assert plain.attrs["kind"] == kind
        assert set(old.ds.data_vars) - set(plain.data_vars) == {"status_code"}  # read from the words, and added
        for variable in map(str, plain.data_vars):
            if variable in old.ds:  # what belongs to the description is not
                np.testing.assert_array_equal(plain[variable].values, old[variable].values)


@pytest.mark.parametrize("name", ["theory_link", "theory_swept_layers", "theory_paths_attended", "gamp"])
def test_saved_again_it_stays_the_same(name, tmp_path):
    old = read(name)
    old.save(tmp_path / "again.nc")
    again = asx.load(tmp_path / "again.nc", problem=old.problem)
    assert again.ds.identical(old.ds)
    assert (again.settings, again.provenance) == (old.settings, old.provenance)


@pytest.mark.filterwarnings("ignore::asymptotix.ConvergenceWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if row[5] else ()) for name, row in SAVED.items() if row[4] is not None],
)
def test_numbers_are_those_of_today(name):
    old, relative = read(name), SAVED[name][4]
    new = computed_anew(old)
    assert set(new.ds.variables) >= set(old.ds.variables) - GONE
    for variable in set(map(str, old.ds.data_vars)) - GONE:
        before, now = old[variable].values, new[variable].values
        if variable in RESERVED:
            continue  # what was called converged then need not have met its tolerance
        if not variable.endswith("_err") and variable not in CLOCK:  # an error is an estimate of its size
            finite = before[np.isfinite(before)]
            scale = AT_A_MINIMUM.get(variable, float(abs(finite).max()) if finite.size else 1.0)
            bound = scale if variable in AT_A_MINIMUM else relative * scale
            if (name in OTHERWISE or variable in OTHER_NODES) and f"{variable}_err" in old.ds:
                bound = np.maximum(bound, 3 * np.hypot(*(one[f"{variable}_err"].values for one in (old, new))))
                near = (abs(now - before) <= bound) | (np.isnan(now) & np.isnan(before))
                assert near.all(), f"{variable}: {now} is not {before}, by more than {bound}"
                continue
            np.testing.assert_allclose(now, before, rtol=relative, atol=bound, err_msg=variable)
