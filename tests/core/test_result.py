import getpass
import importlib.util
import json
import os
import pickle
import platform
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

from asymptotix.core.dataset.files import SCHEMA_VERSION
from asymptotix.core.plot import plot_curve
from asymptotix.core.problem import Outcome, Problem
from asymptotix.core.result import ConvergenceWarning, load
from asymptotix.core.verbs import simulate, solve, thresholds
from toy import ToyLearning, ToyRegression, ToyRun

mpl.use("agg")
PROBLEM = ToyLearning(ToyRegression(indices=2))


@dataclass(frozen=True)
class WithArrays(Problem):
    """A problem that holds data and a function, and of whose points every second does not converge."""

    inputs: np.ndarray
    attention: tuple[np.ndarray, ...] = ()
    link: Callable | None = None
    controls = ("width",)

    def check_control(self, name, values):
        return np.asarray(values)  # width may be infinite

    def solve_points(self, points, *, start, tolerance, progress):
        for i in range(len(points)):
            values = {"mean": float(np.sum(self.inputs)), "rank": i, "flag": i == 0, "word": f"point ± {i}"}
            yield i, Outcome(values, status="so-so" if i % 2 else "converged", converged=i % 2 == 0)


def test_attributes():
    result = solve(PROBLEM, alpha=[0.2, 0.5])
    assert result.overlap.drop_vars(["index", "index_other"]).identical(result.ds["overlap"])
    assert result.test_error.identical(result.ds["test_error"])
    assert result.alpha.values.tolist() == [0.2, 0.5]
    assert result["overlap_err"].shape == (2, 2, 2)
    assert {"overlap", "alpha", "double_overlap"} <= set(dir(result))
    with pytest.raises(AttributeError, match="this theory result has no 'overlpa'; it has overlap, overlap_err"):
        _ = result.overlpa
    with pytest.raises(KeyError, match="has no 'overlpa'"):
        _ = result["overlpa"]


def test_selection_keeps_what_it_knows():
    result = solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.25])
    one = result.sel(alpha=0.45, method="nearest").isel(noise=1)
    assert one.overlap.dims == ("index", "index_other")
    assert one.problem == ToyLearning(ToyRegression(noise=0.25))
    assert result.problem == PROBLEM
    assert (one.kind, one.provenance, one.settings) == (result.kind, result.provenance, result.settings)


def test_problem_offers_methods_on_its_results():
    result = solve(PROBLEM, alpha=[0.2, 0.5]).sel(alpha=0.5)
    assert result.double_overlap(factor=4.0)[0, 0] == 2.0


@pytest.mark.parametrize("kind", ["theory", "experiment", "thresholds"])
def test_file_round_trip(tmp_path, kind):
    result = {
        "theory": lambda: solve(PROBLEM, alpha=[0.2, 1.5], noise=0.1, start=np.eye(2), tolerance=1e-2),
        "experiment": lambda: simulate(PROBLEM, ToyRun(damping=0.25), alpha=[0.2, 1.5], dim=10, seeds=2),
        "thresholds": lambda: thresholds(PROBLEM, noise=[0.0, 1.0]),
    }[kind]()
    result.save(tmp_path / "result.nc")
    again = load(tmp_path / "result.nc")
    assert again.ds.identical(result.ds)
    assert (again.kind, again.problem, again.algorithm) == (kind, result.problem, result.algorithm)
    assert again.provenance == result.provenance
    assert again.settings.keys() == result.settings.keys()
    assert np.array_equal(again.settings.get("start", 0), result.settings.get("start", 0))
    assert os.listdir(tmp_path) == ["result.nc"]


def test_words_flags_infinities_and_arrays_survive(tmp_path):
    problem = WithArrays(np.arange(6.0).reshape(2, 3), attention=(np.ones((2, 2)), np.zeros(3)))
    with pytest.warns(ConvergenceWarning, match="What to do: "):
        result = solve(problem, width=[10, np.inf])
    result.save(tmp_path / "r.nc")
    again = load(tmp_path / "r.nc")
    assert again.ds.identical(result.ds)
    assert again.width.values.tolist() == [10.0, np.inf]
    assert again.word.values.tolist() == ["point ± 0", "point ± 1"]
    assert (again.flag.dtype.kind, again.rank.dtype.kind) == ("b", "i")
    assert again.status.values.tolist() == ["converged", "so-so"]
    assert not again.ok
    assert isinstance(again.problem, WithArrays)
    assert np.array_equal(again.problem.inputs, problem.inputs)
    assert [a.shape for a in again.problem.attention] == [(2, 2), (3,)]


def test_file_opens_in_plain_xarray(tmp_path):
    solve(PROBLEM, alpha=[0.2, 1.5]).save(tmp_path / "r.nc")
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert ds.overlap.dims == ("alpha", "index", "index_other")
        assert ds.attrs["schema_version"] == SCHEMA_VERSION
        assert json.loads(ds.attrs["problem"])["model"] == {
            "type": "ToyRegression",
            "indices": 2,
            "noise": 0.0,
        }


def test_function_in_the_problem_needs_the_problem(tmp_path):
    problem = WithArrays(np.ones(2), link=np.tanh)
    solve(problem, width=10).save(tmp_path / "r.nc")
    with pytest.raises(ValueError, match=r"r\.nc: the function .*tanh.* load\(path, problem=\.\.\.\)"):
        load(tmp_path / "r.nc")
    assert load(tmp_path / "r.nc", problem=problem).problem is problem
    with pytest.raises(ValueError, match="the problem given differs from the one saved in inputs"):
        load(tmp_path / "r.nc", problem=WithArrays(np.zeros(2), link=np.tanh))


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "r.nc"
    with pytest.raises(FileNotFoundError, match=r"r\.nc"):
        load(path)
    result = solve(PROBLEM, alpha=np.linspace(0.1, 2, 50))
    result.save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:100], b"alpha,overlap\n0.1,0.2\n", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"r\.nc cannot be read as netCDF"):
            load(path)
    xr.Dataset({"x": 1.0}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"r\.nc was not written by asymptotix"):
        load(path)
    xr.Dataset({"x": 1.0}, attrs={"schema_version": 999, "kind": "theory"}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"r\.nc has schema version 999"):
        load(path)
    xr.Dataset({"x": 1.0}, attrs={"schema_version": 1, "kind": "theory", "problem": "{"}).to_netcdf(
        path, engine="h5netcdf"
    )
    with pytest.raises(ValueError, match=r"r\.nc is damaged: its attribute 'problem'"):
        load(path)


def test_missing_package_is_named(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "h5py" else find_spec(name))
    with pytest.raises(ImportError, match="needs h5py: pip install"):
        solve(PROBLEM, alpha=0.5).save(tmp_path / "r.nc")


def test_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.nc"
    result = solve(PROBLEM, alpha=0.5)
    result.save(path)
    broken = solve(PROBLEM, alpha=0.7)
    broken.ds["bad"] = xr.DataArray(np.array([{"not": "netCDF"}], dtype=object), dims="one")
    with pytest.raises(Exception, match=r".+"):  # whatever xarray says of such a value
        broken.save(path)
    assert load(path).ds.identical(result.ds)
    assert os.listdir(tmp_path) == ["r.nc"]


def test_provenance_names_versions_but_nobody():
    provenance = solve(PROBLEM, alpha=0.5).provenance
    assert {"asymptotix", "jax", "numpy", "xarray", "python", "platform", "device", "date", "commit"} <= set(provenance)
    assert provenance["numpy"] == np.__version__
    assert provenance["wall_seconds"] >= 0
    text = json.dumps(provenance)
    assert platform.node() not in text
    assert os.path.expanduser("~") not in text
    assert os.getcwd() not in text
    assert getpass.getuser() not in text.split('"')


def test_repr_says_how_many_are_ok():
    text = repr(solve(PROBLEM, alpha=[0.2, 0.5]))
    assert "theory of ToyLearning" in text
    assert "alpha 2" in text
    assert "2 of 2 points ok" in text


def test_result_can_be_sent_to_another_process():
    result = solve(PROBLEM, alpha=[0.2, 0.5])
    again = pickle.loads(pickle.dumps(result))
    assert again.ds.identical(result.ds)
    assert again.problem == result.problem


def test_plot_theory_has_a_line_per_diagonal_entry_and_leaves_settings_alone():
    before = dict(mpl.rcParams)
    ax = solve(PROBLEM, alpha=np.linspace(0.1, 1.5, 5)).plot("overlap")
    assert dict(mpl.rcParams) == before
    assert [line.get_label() for line in ax.lines] == ["index 1, theory", "index 2, theory"]
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_ydata()), np.minimum(np.linspace(0.1, 1.5, 5), 1))
    assert len(ax.collections) == 2  # the error bands
    assert "alpha" in ax.get_xlabel()
    assert "overlap" in ax.get_ylabel()


def test_plot_labels_come_from_the_problem(monkeypatch):
    monkeypatch.setattr(ToyLearning, "index_labels", lambda self: ("layer 1", "layer 2"))
    ax = solve(PROBLEM, alpha=[0.5, 1.0]).plot("overlap")
    assert ax.lines[1].get_label() == "layer 2, theory"


def test_plot_thresholds_marks_finite_places():
    limits = thresholds(PROBLEM, noise=1.0)
    ax = limits.plot()
    assert sorted(np.asarray(line.get_xdata())[0] for line in ax.lines) == [0.2, 0.4]  # exact recovery is infinite
    assert ax.texts[0].get_text() == "weak recovery, index 1"
    ax = solve(PROBLEM, alpha=[0.5, 1.0]).plot("test_error", reference=limits)
    assert len(ax.lines) == 3


def test_plot_crosses_out_what_did_not_converge_and_draws_infinity_as_a_level():
    with pytest.warns(ConvergenceWarning):
        result = solve(WithArrays(np.ones(3)), width=[10, 100, 1000, np.inf])
    ax = result.plot("mean")
    labels = [line.get_label() for line in ax.lines]
    assert labels == ["theory", "width = ∞", "not converged"]
    assert np.asarray(ax.lines[2].get_xdata()).tolist() == [100]
    assert ax.get_xscale() == "log"


def test_plot_says_what_to_select():
    result = solve(PROBLEM, alpha=[0.2, 0.5], noise=[0.0, 0.1])
    with pytest.raises(ValueError, match="overlap varies with alpha, noise; select all but one first"):
        result.plot("overlap")
    with pytest.raises(ValueError, match="no grid"):
        result.isel(alpha=0, noise=0).plot("overlap")
    with pytest.raises(TypeError, match="numeric"):
        result.sel(noise=0).plot("status")
    with pytest.raises(TypeError, match="plot needs the name"):
        result.plot()


def test_plot_takes_whatever_has_a_dataset():
    class Plain:
        """No result: numbers, their kind and a problem with labels."""

        kind, problem = "theory", PROBLEM
        ds = solve(PROBLEM, alpha=[0.5, 1.0]).ds

        def __getitem__(self, name):
            return self.ds[name]

    ax = plot_curve(Plain(), "test_error", reference=thresholds(PROBLEM, noise=1.0))
    assert len(ax.lines) == 3
    assert len(plot_curve(Plain(), "test_error", reference=[Plain(), Plain()]).lines) == 3
