"""Definitions and what follows from them: attributes that survive, labels, errors and traces."""

from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr

from asymptotix.core.definitions.common_names import COMMON
from asymptotix.core.definitions.observable import Observable, definition, table, with_attributes
from asymptotix.core.plot import axis_label
from asymptotix.core.problem import definitions
from asymptotix.core.result import load
from asymptotix.core.verbs import simulate, solve
from toy import ToyLearning, ToyRegression, ToyRun

OVERLAP = Observable("overlap", "overlap", "Of rows.", symbol="Q", formula="Q = W W^T/D", reference="a paper, eq. (1)")


@dataclass(frozen=True)
class Declaring(ToyLearning):
    """Says of its overlap what it is, and of nothing else."""

    def observables(self):
        return table(OVERLAP)


@dataclass(frozen=True)
class DeclaringRun(ToyRun):
    """Measures another overlap."""

    def observables(self, problem):
        return table(Observable("overlap", "measured overlap", "At finite size."))


PROBLEM = Declaring(ToyRegression(indices=2))


def test_an_entry_gives_attributes_and_a_label():
    assert OVERLAP.attrs == {
        "long_name": "overlap",
        "units": "1",
        "description": "Of rows. Q = W W^T/D.",
        "symbol": "Q",
        "reference": "a paper, eq. (1)",
    }
    assert OVERLAP.label == "overlap $Q$"
    plain = Observable("status", "status", "In words.", units="")
    assert plain.attrs == {"long_name": "status", "description": "In words."}
    assert plain.label == "status"


def test_errors_traces_and_draws_follow_from_their_observable():
    own = table(OVERLAP, Observable("loss_trace", "loss", "Before every step."))
    error, trace = definition("overlap_err", own), definition("overlap_trace", own)
    assert error is not None
    assert (error.long_name, error.symbol, error.units) == ("error of overlap", r"\delta Q", "1")
    assert error.description.startswith("Numerical error of overlap")
    assert trace is not None
    assert "overlap after every iteration" in trace.description
    assert definition("loss_trace", own) == own["loss_trace"]  # its own entry first
    assert definition("loss_err", own) is None
    assert definition("_err", own) is None


def test_a_name_has_one_meaning_in_a_table():
    with pytest.raises(ValueError, match="every name must have one meaning in a table, got two of overlap"):
        table(OVERLAP, Observable("overlap", "another", "Thing."))


def test_the_algorithm_refines_the_problem_and_the_problem_the_common_names():
    assert definitions(ToyLearning(ToyRegression()))["overlap"] == COMMON["overlap"]
    assert definitions(PROBLEM)["overlap"] == OVERLAP
    assert definitions(PROBLEM, DeclaringRun())["overlap"].long_name == "measured overlap"
    assert definitions(PROBLEM)["alpha"] == COMMON["alpha"]


def test_results_carry_them_through_selection_file_and_plain_xarray(tmp_path):
    result = solve(PROBLEM, alpha=[0.2, 0.5], noise=0.1, progress=False)
    assert result.overlap.attrs == OVERLAP.attrs
    assert result.overlap_err.attrs["long_name"] == "error of overlap"
    assert result.alpha.attrs == COMMON["alpha"].attrs
    assert "not its standard deviation" in result.noise.attrs["description"]
    assert result.sel(alpha=0.2).overlap.attrs == OVERLAP.attrs
    result.save(tmp_path / "result.nc")
    assert load(tmp_path / "result.nc").ds.identical(result.ds)
    with xr.open_dataset(tmp_path / "result.nc") as plain:
        assert plain.overlap.attrs == OVERLAP.attrs
        assert plain.alpha.attrs == COMMON["alpha"].attrs
    runs = simulate(PROBLEM, DeclaringRun(), alpha=0.2, dim=20, seeds=2, progress=False)
    assert runs.overlap.attrs["long_name"] == "measured overlap"
    assert runs.dim.attrs["symbol"] == "D"


def test_what_has_attributes_keeps_them_and_what_nobody_defined_is_called_by_its_name():
    ds = xr.Dataset({"overlap": ("alpha", [0.5], {"units": "cm"}), "own_thing": ("alpha", [1.0])}, {"alpha": [0.2]})
    found = with_attributes(ds, table(OVERLAP))
    assert found.overlap.attrs == {**OVERLAP.attrs, "units": "cm"}
    assert found.own_thing.attrs == {"long_name": "own thing"}
    assert ds.alpha.attrs == {}  # what was given is not touched
    assert ds.own_thing.attrs == {}


def test_labels_of_axes():
    assert axis_label("alpha") == r"sample ratio $\alpha$"
    assert axis_label("overlap_trace") == "overlap $Q$"
    assert axis_label("own_thing") == "own thing"
    assert axis_label(solve(PROBLEM, alpha=0.2, progress=False).test_error) == "test error"
    assert axis_label(xr.DataArray(np.zeros(2), name="alpha")) == r"sample ratio $\alpha$"
    described = xr.DataArray(0.0, name="dim", attrs={"long_name": "dimension", "symbol": "d"})
    assert axis_label(described) == "dimension $d$"
