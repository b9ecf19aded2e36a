"""Where files are looked for, and that nothing but what was published is taken."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from pathlib import Path

import pytest

from asymptotix.tasks.stored import catalogue, locate
from asymptotix.tasks.stored.locate import stored_file
from data_stand_ins import published_data

CONTENT = b"some numbers " * 50
PACKED = gzip.compress(CONTENT, mtime=0)
PLAIN = b"some words"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def small_set(tmp_path, monkeypatch):
    """A data set of two small files in place of all others, no variable set, and a cache of its own."""
    files = (
        catalogue.StoredFile("numbers.gz", len(PACKED), sha256(PACKED), sha256(CONTENT)),
        catalogue.StoredFile("words.txt", len(PLAIN), sha256(PLAIN)),
    )
    small = catalogue.StoredSet("small", "small_folder", "numbers and words", files, "none", "nobody")
    monkeypatch.setattr(catalogue, "DATA_SETS", {"small": small})
    monkeypatch.delenv("ASYMPTOTIX_DATA", raising=False)
    monkeypatch.setattr(locate, "cache_directory", lambda: tmp_path / "cache")


def put(directory: Path, name: str, data: bytes) -> Path:
    path = directory / "small_folder" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_directory_then_variable_then_cache(tmp_path, monkeypatch):
    given, named, cache = (tmp_path / name for name in ("given", "named", "cache"))
    found = [put(directory, "words.txt", PLAIN) for directory in (given, named, cache)]
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(named))
    for expected in found:
        assert stored_file("small", "words.txt", given) == expected
        expected.unlink()
    with pytest.raises(FileNotFoundError) as error:
        stored_file("small", "words.txt", given)
    for said in ("small_folder/words.txt", str(given), str(named), str(cache), "asymptotix data get small"):
        assert said in str(error.value)


def test_what_is_not_said_is_named_too(tmp_path):
    said = r"directory \(not given\), \$ASYMPTOTIX_DATA \(not set\), cache \(.*cache\)"
    with pytest.raises(FileNotFoundError, match=said):
        stored_file("small", "words.txt")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("numbers.gz", PACKED),
        ("numbers.gz", gzip.compress(CONTENT, 1, mtime=99)),  # packed anew
        ("numbers", CONTENT),  # unpacked
        ("numbers.gz", CONTENT),  # unpacked, and not renamed
    ],
)
def test_content_decides(tmp_path, name, data):
    assert data == PACKED or sha256(data) != sha256(PACKED)
    path = put(tmp_path, name, data)
    assert stored_file("small", "numbers.gz", tmp_path) == path


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("numbers.gz", PACKED[:-3], "its SHA-256 is"),
        ("numbers.gz", PACKED[:20] + b"\xff" * 20, "its SHA-256 is"),
        ("numbers.gz", b"", "its SHA-256 is"),
        ("numbers.gz", gzip.compress(CONTENT + b"1", mtime=0), "its SHA-256 is"),
        ("words.txt", b"<html>sorry</html>", "it has 18 bytes instead of 10"),
        ("words.txt", b"some Words", "its SHA-256 is"),
    ],
)
def test_damaged_files_are_refused_with_the_remedy(tmp_path, name, data, said):
    path = put(tmp_path, name, data)
    put(tmp_path / "cache", name, {"numbers.gz": PACKED, "words.txt": PLAIN}[name])  # and not passed over
    with pytest.raises(ValueError, match="is not the published file") as error:
        stored_file("small", name, tmp_path)
    for part in (str(path), said, f"asymptotix data get small --to {tmp_path}"):
        assert part in str(error.value)
    assert stored_file("small", name, tmp_path, verify=False) == path


def test_a_directory_that_was_named_must_be_there(tmp_path, monkeypatch):
    put(tmp_path / "cache", "words.txt", PLAIN)
    with pytest.raises(FileNotFoundError, match=r"directory must be a directory .* there is none at .*nowhere"):
        stored_file("small", "words.txt", tmp_path / "nowhere")
    monkeypatch.setenv("ASYMPTOTIX_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"\$ASYMPTOTIX_DATA must be a directory of data"):
        stored_file("small", "words.txt")
    monkeypatch.setenv("ASYMPTOTIX_DATA", "")
    assert stored_file("small", "words.txt").read_bytes() == PLAIN


def test_unknown_names():
    with pytest.raises(ValueError, match="data_set must be one of 'small', got 'large'"):
        stored_file("large", "words.txt")
    with pytest.raises(ValueError, match=r"name must be one of 'numbers.gz', 'words.txt', got 'word.txt'"):
        stored_file("small", "word.txt")


def test_the_cache_is_where_the_platform_has_it(monkeypatch):
    pooch = pytest.importorskip("pooch", reason="compares with pooch")
    monkeypatch.undo()
    if sys.platform == "linux":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert locate.cache_directory() == Path(pooch.os_cache("asymptotix")) / "data"


def test_the_cache_follows_its_variable(monkeypatch, tmp_path):
    monkeypatch.undo()
    if sys.platform == "darwin":
        pytest.skip("macOS has no variable for it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate.cache_directory() == tmp_path / "asymptotix" / "data"


def test_published_files_are_those_of_the_catalogue(monkeypatch):
    monkeypatch.undo()
    directory = published_data()
    checked = 0
    for one in catalogue.DATA_SETS.values():
        for file in (*one.files, *one.instead):
            if (directory / one.folder / file.name).is_file():
                path = stored_file(one.name, file.name, directory)
                assert path.stat().st_size == file.size
                if file.content_sha256 is not None:
                    assert sha256(gzip.decompress(path.read_bytes())) == file.content_sha256
                checked += 1
    assert checked > 0, os.listdir(directory)
