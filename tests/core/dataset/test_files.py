"""What is in a file is checked before it is believed; what is not understood is a ValueError with the path."""

import io
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import asymptotix as asx
from asymptotix.core.dataset import files
from asymptotix.core.dataset.checksums import checksums, seal
from asymptotix.core.problem import Outcome, Problem
from asymptotix.core.result import load
from asymptotix.core.specification import describe, differences
from asymptotix.core.verbs import solve
from toy import ToyLearning, ToyRegression

PROBLEM = ToyLearning(ToyRegression(indices=2))
NAMES = ("schema_version", "kind", "problem", "algorithm", "settings", "provenance")


@dataclass(frozen=True)
class WithLink(Problem):
    """A problem that holds a function, and evaluates it for its file."""

    link: Callable | None = None
    controls = ("width",)

    def function_values(self, field):
        return self.link(np.linspace(-1.0, 1.0, 9)) if self.link is not None else None

    def solve_points(self, points, *, start, tolerance, progress):
        for i in range(len(points)):
            yield i, Outcome({"x": float(i)})


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "r.nc"
    solve(PROBLEM, alpha=[0.5, 1.5], progress=False).save(path)
    return path.read_bytes()


@pytest.fixture
def saved(contents, tmp_path):
    path = tmp_path / "r.nc"
    path.write_bytes(contents)
    return path


@pytest.fixture
def change(saved, monkeypatch):
    """Make reading the file give the dataset as changed by a function, with checksums that agree unless not sealed.

    The change is made behind HDF5, where it takes no time.
    """
    whole = opened(saved)

    def make(how, *, sealed=True):
        ds = how(whole.copy(deep=True))
        if sealed:
            ds = ds.assign_attrs(checksums=json.dumps(checksums(ds, NAMES)))
        monkeypatch.setattr(files, "_opened", lambda data: ds)

    return make


def opened(path):
    with xr.open_dataset(io.BytesIO(path.read_bytes()), engine="h5netcdf") as ds:
        return ds.load()


def refused(path, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        load(path, **options)
    assert str(path) in str(caught.value)
    return caught.value


# ---------------------------------------------------------------------------------------------- checksums


def test_changed_numbers_words_and_descriptions_are_named(saved, change):
    for name, how in (
        ("overlap", lambda ds: ds.assign(overlap=ds["overlap"] + 1e-15)),
        ("status_code", lambda ds: ds.assign(status_code=ds["converged"].astype(str))),
        ("attribute settings", lambda ds: ds.assign_attrs(settings='{"mapping": {}}')),
        ("attribute problem", lambda ds: ds.assign_attrs(problem=ds.attrs["problem"].replace("0.0", "0.5"))),
    ):
        change(how, sealed=False)
        refused(saved, f"r.nc is damaged or was changed: {name} is not what was written")


def test_flipped_bits_in_the_numbers_are_seen(saved):
    """The numbers themselves have no structure that HDF5 could find broken."""
    data, value = bytearray(saved.read_bytes()), load(saved).overlap.values.tobytes()
    at = data.find(value)
    assert at > 0
    data[at] ^= 1  # the last digit
    saved.write_bytes(data)
    refused(saved, "r.nc is damaged: its bytes are not those that were written")
    saved.write_bytes(data[:-1])  # without its seal, as a copy is
    refused(saved, "overlap is not what was written")


def test_a_copy_made_by_xarray_is_still_known_to_be_whole(saved, tmp_path):
    before = load(saved)
    opened(saved).assign_attrs(history="copied").to_netcdf(tmp_path / "copy.nc", engine="h5netcdf")
    assert load(tmp_path / "copy.nc").ds.identical(before.ds)


def test_a_compressed_copy_is_loaded(saved, tmp_path):
    before, ds = load(saved), opened(saved)
    arrays = [name for name in ds.data_vars if ds[name].dtype.kind == "f" and ds[name].ndim]
    packed = {name: {"zlib": True, "complevel": 9} for name in arrays}
    ds.to_netcdf(tmp_path / "copy.nc", engine="h5netcdf", encoding=packed)
    assert load(tmp_path / "copy.nc").ds.identical(before.ds)


def test_a_small_file_that_claims_gigabytes_is_refused_before_they_are_allocated(saved, tmp_path):
    """Its variable was never written: 3.2 GB of the fill value."""
    import h5py

    path = tmp_path / "large.nc"
    path.write_bytes(saved.read_bytes()[: -len(seal(b""))])
    with h5py.File(path, "a") as file:
        file.create_dataset("large", (20_000, 20_000), "f8", chunks=(1000, 1000), compression="gzip")
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    said = str(refused(path, "claim to hold 3.2 GB, more than compression can explain"))
    _, peak = tracemalloc.get_traced_memory()  # NumPy's arrays are in it
    tracemalloc.stop()
    assert peak < 1e8
    assert "xarray.open_dataset" in said
    assert "\n" not in said


def test_missing_checksums_are_damage(saved, change):
    change(lambda ds: ds.assign_attrs(checksums="[]"), sealed=False)
    refused(saved, "its checksums are no mapping")
    change(lambda ds: ds.assign_attrs(checksums=3), sealed=False)
    refused(saved, "its attribute 'checksums' is missing or is no JSON")


# ---------------------------------------------------------------------------------------------- what is not understood


@pytest.mark.parametrize("version", ["2", 2.0, np.array([2, 2]), 0, -1, np.nan])
def test_a_schema_version_is_a_number_that_is_known(saved, change, version):
    change(lambda ds: ds.assign_attrs(schema_version=version))
    refused(saved, "has no known schema version: it must be 1 to 2, got")


@pytest.mark.parametrize(
    ("attributes", "match"),
    [
        ({"kind": "theories"}, "unknown kind: it must be one of theory, experiment, thresholds, got 'theories'"),
        ({"kind": 3}, "unknown kind"),
        ({"problem": "3"}, "needs the key 'type'"),
        ({"problem": 3}, "its attribute 'problem' is missing or is no JSON"),
        ({"problem": '{"type": ["ToyLearning"]}'}, "a type must be the name of a class"),
        ({"problem": '{"type": "ToyRegression"}'}, "its problem is a ToyRegression, which is no Problem"),
        ({"problem": '{"type": "ToyRun"}'}, "its problem is a ToyRun, which is no Problem"),
        ({"problem": '{"type": "RiskMinimization", "model": 3}'}, "r.nc: "),
        ({"problem": '{"type": "ToyLearning", "model": {"array": "nowhere"}}'}, "nowhere"),
        ({"problem": '{"type": "ToyLearning", "model": {"array": [1]}}'}, "r.nc: "),
        ({"problem": '{"type": "' + "x" * 10**5 + '"}'}, "unknown type"),
        ({"algorithm": '{"type": "ToyRegression"}'}, "its algorithm is a ToyRegression, which is no Algorithm"),
        ({"algorithm": "3"}, "needs the key 'type'"),
        ({"algorithm": "0"}, "needs the key 'type'"),
        ({"settings": "[1, 2]"}, "its settings must be a mapping, got tuple"),
        ({"settings": '{"mapping": 3}'}, "r.nc: "),
        ({"provenance": "[]"}, "its provenance is no mapping"),
        ({"settings": "[" * 10**5 + "]" * 10**5}, "nested too deeply"),
        ({"problem": '{"type":' * 200 + "3" + "}" * 200}, "nested too deeply"),
        ({"settings": '"' + "x" * 2**24 + '"'}, "is too long"),
    ],
)
def test_descriptions_of_another_kind_are_refused(saved, change, attributes, match):
    change(lambda ds: ds.assign_attrs(attributes))
    error = refused(saved, match)
    assert len(str(error)) < 2000


@pytest.mark.parametrize("name", ["status", "converged"])
def test_a_file_says_how_its_points_ended(saved, change, name):
    change(lambda ds: ds.drop_vars(name))
    refused(saved, f"its variable '{name}', which says how every point ended, is missing")


def test_unknown_status_codes_are_refused(saved, change):
    change(lambda ds: ds.assign(status_code=xr.full_like(ds["status_code"], "splendid", dtype="U8")))
    refused(saved, "unknown status code 'splendid'")


def test_descriptions_that_ask_for_too_much_are_refused_at_once(saved, change):
    for described in (
        {"type": "AttentionPaths", "layers": 10**9},
        {"type": "BayesOptimal", "model": {"type": "DeepAttention", "layers": 10**9, "tokens": 2}},
        {"type": "RiskMinimization", "model": {"type": "AttentionIndex", "noise": 10**400}},
    ):
        change(lambda ds, described=described: ds.assign_attrs(problem=json.dumps(described)))
        begun = time.perf_counter()
        refused(saved, r"r\.nc: ")
        assert time.perf_counter() - begun < 10  # 40 s and 8 GB for the second one if the depth is taken seriously


def test_the_arguments_themselves(saved, tmp_path):
    for wrong in (ToyRegression(), ToyLearning, "ToyLearning", 3):
        with pytest.raises(TypeError, match="problem must be the problem that was saved, or be left out, got"):
            load(saved, problem=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="path must be the name of a file, got 3"):
        load(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.nc"):
        load(tmp_path / "none.nc")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a file that can be read"):
        load(tmp_path / "pipe")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(saved):
    saved.chmod(0)
    with pytest.raises(PermissionError, match=r"r\.nc cannot be read"):
        load(saved)


# ---------------------------------------------------------------------------------------------- writing


def test_what_could_not_be_read_is_not_written(saved):
    before = load(saved)
    other = load(saved)
    other.kind = "guess"
    with pytest.raises(ValueError, match=r"r\.nc is not written, because it could not be read: .*unknown kind"):
        other.save(saved)
    assert load(saved).ds.identical(before.ds)


def test_results_are_saved_under_the_names_that_users_give(tmp_path):
    result = solve(PROBLEM, alpha=0.5, progress=False)
    for name in ("with blank ± ü", ".a[1]*.nc"):
        result.save(tmp_path / name)
        assert load(str(tmp_path / name)).ds.identical(result.ds)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        result.save(tmp_path / "no" / "r.nc")


# ---------------------------------------------------------------------------------------------- functions


def test_another_function_is_told_by_its_values(tmp_path):
    path = tmp_path / "r.nc"
    solve(WithLink(np.tanh), width=1, progress=False).save(path)
    assert json.loads(opened(path).attrs["problem"])["link"]["values"] == np.tanh(np.linspace(-1, 1, 9)).tolist()
    problem = WithLink(lambda z: np.sinh(z) / np.cosh(z))  # the same function, written otherwise
    assert load(path, problem=problem).problem is problem
    refused(path, "differs from the one saved in link: another function", problem=WithLink(np.sin))
    with pytest.raises(ValueError, match="differs from the one saved in link: another function"):
        solve(WithLink(np.sin), width=1, resume=path, progress=False)


@pytest.mark.parametrize("link", [lambda z: z / 0 * np.nan, lambda z: {}["no"]])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_that_cannot_be_evaluated_has_no_values(tmp_path, link):
    path = tmp_path / "r.nc"
    solve(WithLink(link), width=1, progress=False).save(path)
    assert "values" not in json.loads(opened(path).attrs["problem"])["link"]
    other = WithLink(np.sin)
    assert load(path, problem=other).problem is other  # nothing to compare with


def test_an_index_of_a_link_is_told_apart():
    first, second = (
        asx.BayesOptimal(asx.MultiIndex(link, indices=2, noise=0.1)) for link in (lambda z: z[0], lambda z: z[1])
    )
    assert differences(describe(first), describe(second)) == ["model.link: another function"]


@pytest.mark.slow
def test_functions_of_all_models_are_told_apart():
    task = asx.AttentionIndex(tokens=2, target=asx.MarchenkoPastur(0.5), noise=0.5)
    pairs = {
        "link": [asx.SequenceIndex(lambda Z, a=a: a * Z @ Z.T, 2, 3, noise=0.1) for a in (1.0, 1.00001)],
        "activation": [asx.DeepAttention(1, 2, activation=f) for f in (jnp.tanh, jnp.sin)],
        "loss": [asx.RiskMinimization(task, loss=lambda y, h, a=a: jnp.sum((y - a * h) ** 2)) for a in (1, 2)],
        "penalty": [asx.RiskMinimization(task, penalty=lambda t, a=a: a * t**2) for a in (1, 2)],
    }
    for name, (first, second) in pairs.items():
        described = json.loads(json.dumps(describe(first)))
        assert differences(described, describe(first)) == []
        assert differences(described, describe(second)) == [f"{name}: another function"]
