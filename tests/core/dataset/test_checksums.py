"""A checksum is of what a reader sees: everything that he sees changes it, and nothing else does."""

import io

import numpy as np
import pytest
import xarray as xr

from asymptotix.core.dataset.checksums import checksums, first_difference

EXAMPLE = xr.Dataset(
    {
        "x": (("a", "b"), np.array([[0.5, np.nan], [-0.0, np.inf]]), {"unit": "1", "count": 3, "several": [1.5, 2.5]}),
        "words": (("a",), np.array(["converged", "so-so ±"])),
        "flag": (("a",), np.array([True, False])),
        "rank": (("a",), np.array([2, -7])),
        "short": (("a",), np.array([2, 3], dtype=np.int16)),
        "single": (("a",), np.array([0.1, 0.2], dtype=np.float32)),
        "nothing": (("none",), np.zeros(0)),
        "one": ((), 2.5),
    },
    coords={"a": [0.25, np.inf], "noise": 0.5},
    attrs={"kind": "theory", "schema_version": 2},
)
NAMES = ("kind", "schema_version")


def through_file(ds):
    data = io.BytesIO(bytes(ds.to_netcdf(engine="h5netcdf")))
    with xr.open_dataset(data, engine="h5netcdf") as opened:
        return opened.load()


def test_a_file_and_its_copy_have_the_checksums_of_what_was_written():
    once = through_file(EXAMPLE)
    assert checksums(once, NAMES) == checksums(EXAMPLE, NAMES)
    assert checksums(through_file(once), NAMES) == checksums(EXAMPLE, NAMES)


CHANGES = {
    "x": lambda ds: ds["x"].values.__setitem__((1, 0), 0.0),  # the sign of zero
    "single": lambda ds: ds["single"].values.__setitem__(0, np.nextafter(np.float32(0.1), np.float32(1))),
    "words": lambda ds: ds["words"].values.__setitem__(1, "so-so"),
    "flag": lambda ds: ds["flag"].values.__setitem__(1, True),
    "rank": lambda ds: ds["rank"].values.__setitem__(1, -8),
    "short": lambda ds: ds["short"].attrs.update(unit="2"),
    "attribute kind": lambda ds: ds.attrs.update(kind="thresholds"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_named(name):
    changed = EXAMPLE.copy(deep=True)
    CHANGES[name](changed)
    before, now = checksums(EXAMPLE, NAMES), checksums(changed, NAMES)
    assert {key for key in before if before[key] != now[key]} == {name}
    assert first_difference(now, before) == f"{name} is not what was written"


def test_dimensions_names_and_places_count():
    before = checksums(EXAMPLE, NAMES)
    for changed, said in (
        (EXAMPLE.assign(x=EXAMPLE["x"].transpose("b", "a")), "x is not what was written"),
        (EXAMPLE.set_coords("one"), "one is not what was written"),
        (EXAMPLE.drop_vars("one"), "one is missing"),
        (EXAMPLE.assign(two=2.0), "two was added to it"),
        (EXAMPLE.rename_dims(b="c"), "x is not what was written"),
    ):
        assert first_difference(checksums(changed, NAMES), before) == said
    assert first_difference(before, before) is None
