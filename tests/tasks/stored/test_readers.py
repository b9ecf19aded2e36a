"""IDX files, and Omniglot in its three forms."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from asymptotix.tasks.stored.idx import read_idx
from asymptotix.tasks.stored.locate import stored_file
from asymptotix.tasks.stored.omniglot import read_omniglot
from data_stand_ins import CHARACTERS, DRAWERS, idx, published_data, write_stand_in

ARRAYS = ("packed", "alphabets", "class_alphabet", "class_character", "class_set", "class_file")


@pytest.mark.parametrize("shape", [(3, 2, 2), (5,), (0, 4)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path, shape, packed):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = idx(array)
    (tmp_path / "file").write_bytes(gzip.compress(data) if packed else data)
    np.testing.assert_array_equal(read_idx(tmp_path / "file"), array)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "must hold 8 numbers"),
        (lambda data: data + b"\0", "must hold 8 numbers"),
        (lambda data: data[:6], "cut short inside its header"),
        (lambda data: b"", "must be an IDX file"),
        (lambda data: b"<html>", "must be an IDX file"),
        (lambda data: b"\x00\x00\x0d" + data[3:], "must be an IDX file of unsigned bytes"),  # floats
        (lambda data: gzip.compress(data)[:-9], "damaged gzip file"),
        (lambda data: gzip.compress(data)[:12] + b"\xff" * 20, "damaged gzip file"),
    ],
)
def test_damaged_idx(tmp_path, damage, message):
    path = tmp_path / "file"
    path.write_bytes(damage(idx(np.zeros((2, 2, 2), np.uint8))))
    with pytest.raises(ValueError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_all_forms_of_omniglot_give_the_same_arrays(tmp_path):
    forms = {form: write_stand_in(tmp_path / form, form) for form in ("packed", "zips", "folders")}
    read = {form: read_omniglot(directory, verify=False) for form, directory in forms.items()}
    read["the folder itself"] = read_omniglot(forms["zips"] / "omniglot", verify=False)
    for form, images in read.items():
        for name in ARRAYS:
            found, expected = getattr(images, name), getattr(read["packed"], name)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name} from {form}", strict=True)
        assert images.sha256() == read["packed"].sha256()


def test_a_zip_and_a_folder_go_together(tmp_path):
    mixed = write_stand_in(tmp_path / "mixed", "zips") / "omniglot"
    (mixed / "images_evaluation.zip").unlink()
    unpacked = write_stand_in(tmp_path / "folders", "folders") / "omniglot"
    (unpacked / "images_evaluation").rename(mixed / "images_evaluation")
    both = write_stand_in(tmp_path / "packed")
    assert read_omniglot(mixed, verify=False).sha256() == read_omniglot(both, verify=False).sha256()


def test_omniglot_stand_in(tmp_path):
    images = read_omniglot(write_stand_in(tmp_path / "data"), verify=False)
    pixels = images.pixels(slice(0, 2))
    assert pixels.shape == (2, DRAWERS, 105, 105)
    assert set(np.unique(pixels)) == {0, 1}
    found = [
        (str(images.alphabets[a]), int(c), int(part))
        for a, c, part in zip(images.class_alphabet, images.class_character, images.split, strict=True)
    ]
    part = {"Greek": 0, "Hebrew": 1, "Tibetan": 2}
    expected = [
        (name, number, part.get(name, 0 if number <= 41 else 2))
        for _, name, numbers in CHARACTERS
        for number in numbers
    ]
    assert found == expected


def test_the_sum_sees_every_array(tmp_path):
    images = read_omniglot(write_stand_in(tmp_path / "data"), verify=False)
    sums = {images.sha256()}
    for name in ARRAYS:
        changed = getattr(images, name).copy()
        changed.flat[-1] = "Ulog" if name == "alphabets" else changed.flat[-1] ^ 1
        sums.add(replace(images, **{name: changed}).sha256())
    assert len(sums) == 1 + len(ARRAYS)


@pytest.mark.parametrize("form", ["packed", "zips", "folders"])
def test_a_stand_in_is_not_the_published_omniglot(tmp_path, form):
    with pytest.raises(ValueError, match=r"is not the published Omniglot; .* asymptotix data get omniglot --to"):
        read_omniglot(write_stand_in(tmp_path / "data", form))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("form", "file"),
    [
        ("packed", "omniglot_105.npz"),
        ("zips", "images_evaluation.zip"),
        ("folders", "images_background/Greek/character02/0002_03.png"),
    ],
)
def test_truncated_omniglot(tmp_path, form, file):
    folder = write_stand_in(tmp_path / "data", form) / "omniglot"
    truncate(folder / file)
    with pytest.raises(ValueError, match=r"cannot be read: .* asymptotix data get omniglot --to") as error:
        read_omniglot(tmp_path / "data", verify=False)
    assert str(folder) in str(error.value)


def test_a_missing_image_is_seen(tmp_path):
    folder = write_stand_in(tmp_path / "data", "folders") / "omniglot"
    (folder / "images_background/Greek/character02/0002_03.png").unlink()
    with pytest.raises(ValueError, match="63 images of 16 characters, not equally many of each"):
        read_omniglot(tmp_path / "data", verify=False)


def test_missing_omniglot_says_what_would_do(tmp_path, monkeypatch):
    monkeypatch.delenv("ASYMPTOTIX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_stand_in(tmp_path / "data", "zips") / "omniglot"
    (folder / "images_background.zip").unlink()  # half of it is nothing
    with pytest.raises(FileNotFoundError, match=r"omniglot_105.npz, or with images_background and images_evaluation"):
        read_omniglot(tmp_path / "data")


def test_published_omniglot():
    directory = published_data()
    images = read_omniglot(directory)  # and its sum
    assert images.packed.shape == (1623, 20, 105, 14)
    assert np.bincount(images.split).tolist() == [1028, 172, 423]
    names = images.alphabets[images.class_alphabet]
    for part, file in enumerate(("train", "val", "test")):
        listed = directory / "omniglot" / "splits" / "torchmeta" / f"{file}.json"
        if not listed.is_file():
            pytest.skip(f"needs {listed} to compare the split with")
        expected = {
            (("background", "evaluation").index(of_set), alphabet, int(character.removeprefix("character")))
            for of_set, alphabets in json.loads(listed.read_text()).items()
            for alphabet, characters in alphabets.items()
            for character in characters
        }
        own = images.split == part
        rows = (images.class_set[own].tolist(), names[own].tolist(), images.class_character[own].tolist())
        assert set(zip(*rows, strict=True)) == expected


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_published_idx(name):
    directory = published_data()
    files = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    images, labels = (read_idx(stored_file(name, file, directory)) for file in files)
    assert images.shape == (10_000, 28, 28)
    assert sorted(set(labels.tolist())) == list(range(10))
    if name == "fashion-mnist":
        assert np.bincount(labels).tolist() == [1000] * 10
