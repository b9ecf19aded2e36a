"""Selecting by labels and by values: what is found, and what an error says of what is not."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.dataset.labels import LabelIndex
from toy import ToyLearning, ToyRegression, ToyRun

FIXTURES = Path(__file__).parents[1] / "fixtures" / "saved_by_0_1"
PROBLEM = ToyLearning(ToyRegression(indices=3))


@pytest.fixture
def layered(monkeypatch) -> asx.Result:
    monkeypatch.setattr(ToyLearning, "index_labels", lambda self: ("layer 1", "layer 2 row 1", "layer 2 row 2"))
    return asx.solve(PROBLEM, alpha=np.linspace(0.1, 1.5, 15))


def test_entries_are_selected_by_label_and_still_by_position(layered):
    for index in ("layer 2 row 2", 2, -1):
        assert layered.sel(index=index).ds.identical(layered.isel(index=2).ds)
        assert layered.overlap.sel(index=index).identical(layered.overlap.isel(index=2))
    both = layered.overlap.sel(index=["layer 2 row 2", "layer 1"], index_other="layer 1")
    np.testing.assert_array_equal(both, layered.overlap.isel(index=[2, 0], index_other=0))
    mask = np.array([False, True, True])
    for several in (slice("layer 2 row 1", "layer 2 row 2"), slice(1, 3), slice(1, None), mask):
        assert layered.overlap.sel(index=several).identical(layered.overlap.isel(index=[1, 2]))
    assert layered.sel(alpha=0.22, index="layer 1", method="nearest").overlap.dims == ("index_other",)
    diagonal = xr.DataArray(["layer 1", "layer 2 row 2"], dims="which")
    assert layered.overlap.sel(index=diagonal, index_other=diagonal).dims == ("alpha", "which")


def test_the_first_row_need_not_be_said_where_it_is_the_only_one():
    ds = xr.Dataset({"overlap": ("index", [1.0, 2.0])}, {"index_label": ("index", ["layer 1 row 1", "layer 2 row 1"])})
    ds = ds.assign(status="converged", converged=True)
    result = asx.Result(ds, problem=PROBLEM, kind="theory")
    assert result.overlap.sel(index="layer 2") == 2.0
    assert result.overlap.sel(index="layer 1") == 1.0


def test_errors_say_what_there_is(layered):
    with pytest.raises(KeyError, match=r"alpha = 0\.25 is not on the grid; the nearest there are 0\.2, 0\.3.*nearest"):
        layered.sel(alpha=0.25)
    with pytest.raises(KeyError, match="index has no 'layer 3'; it has 'layer 1', 'layer 2 row 1', 'layer 2 row 2'"):
        layered.sel(index="layer 3")
    with pytest.raises(KeyError, match="index has no 'layer 2'"):  # two rows answer to it
        layered.overlap.sel(index="layer 2")
    with pytest.raises(KeyError, match="index has positions 0 to 2, got 3"):
        layered.sel(index=3)
    with pytest.raises(KeyError, match="no dimension 'noise' to select from; there are alpha, index"):
        layered.sel(noise=0.1)
    with pytest.raises(KeyError, match=r"no dimension 'alpha' to select from: alpha is 0\.2 throughout"):
        layered.sel(alpha=0.2).sel(alpha=0.3)


def test_the_last_digits_of_a_value_may_differ(layered):
    assert 0.1 + 0.2 != 0.3
    assert layered.sel(alpha=0.3).overlap.identical(layered.isel(alpha=2).overlap)
    assert layered.sel(alpha=[0.3, 0.7]).alpha.values.tolist() == layered.alpha.values[[2, 6]].tolist()
    runs = asx.simulate(PROBLEM, ToyRun(), alpha=0.5, dim=[10, 11], seeds=2)
    assert runs.sel(dim=11, seed=1).overlap.identical(runs.isel(dim=1, seed=1).overlap)
    with pytest.raises(KeyError, match=r"dim = 12 is not on the grid"):
        runs.sel(dim=12)


def test_files_are_as_before_and_plain_xarray_opens_them(tmp_path, layered):
    layered.save(tmp_path / "r.nc")
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert "index" not in ds.coords
        assert set(ds.coords) == {"alpha", "index_label", "index_other_label"}
        assert ds.index_label.values.tolist() == ["layer 1", "layer 2 row 1", "layer 2 row 2"]
    again = asx.load(tmp_path / "r.nc")
    assert again.ds.identical(layered.ds)
    assert isinstance(again.overlap.xindexes["index"], LabelIndex)
    mixed = asx.Result(layered.ds.assign(twice=2 * layered.overlap), problem=PROBLEM, kind="theory")
    assert "index" not in mixed.ds.coords  # what was computed from labelled numbers is kept like the rest


@pytest.mark.parametrize(
    ("name", "dim", "label"), [("theory_two_layers", "index", "layer 2"), ("theory_paths", "path", "2-1")]
)
def test_results_of_earlier_versions_have_labels_too(name, dim, label):
    old = asx.load(FIXTURES / f"{name}.nc")
    variable = "overlap" if dim == "index" else "order_parameter"
    assert label in old[variable][dim].values
    assert old[variable].sel({dim: label}).identical(old[variable].sel({dim: 1}))


def test_labels_follow_what_is_selected(layered):
    last = layered.isel(index=[2, 0])
    assert last.overlap.index.values.tolist() == ["layer 2 row 2", "layer 1"]
    assert layered.sel(index=["layer 2 row 2", "layer 1"]).ds.identical(last.ds)
    assert layered.sel(index="layer 1").ds.identical(layered.isel(index=0).ds)


def test_theory_and_experiment_are_compared_row_by_row(layered):
    runs = asx.simulate(PROBLEM, ToyRun(), alpha=[0.2, 0.5], dim=100, seeds=3)
    gap = runs.overlap.mean("seed") - layered.sel(alpha=[0.2, 0.5]).overlap
    assert gap.shape == (2, 3, 3)
    found = asx.compare(layered, runs)
    one = found.sel(index="layer 1", index_other="layer 1", alpha=0.5)
    assert one.ds.overlap_mean == found.ds.overlap_mean.isel(index=0, index_other=0, alpha=1)
    with pytest.raises(KeyError, match="not on the grid"):
        found.sel(alpha=0.4)
