"""Small data sets of the same format as the published ones, so that tests run the whole path without them."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

#: Characters of the stand-in, (set, alphabet, characters): training, validation, and the alphabet that the split cuts.
CHARACTERS = (
    (0, "Greek", (1, 2, 3, 4, 5, 6)),
    (0, "Hebrew", (1, 2, 3, 4)),
    (1, "Gurmukhi", (40, 41, 42, 43)),
    (1, "Tibetan", (1, 2)),
)
DRAWERS = 4
SETS = ("images_background", "images_evaluation")


def published_data() -> Path:
    """The directory that ASYMPTOTIX_DATA names; the test is skipped where there is none."""
    named = os.environ.get("ASYMPTOTIX_DATA")
    if not named:
        pytest.skip("needs the published data sets: ASYMPTOTIX_DATA names no directory")
    return Path(named)


def write_stand_in(directory: Path, form: str = "packed", *, seed: int = 0) -> Path:
    """Write Omniglot (as "packed", "zips" or "folders"), MNIST and Fashion-MNIST with random images of their formats.

    Images of a class are noisy copies of one shape, so that there is something to learn.
    """
    rng = np.random.default_rng(seed)
    _write_omniglot(directory / "omniglot", form, rng)
    for name in ("mnist", "fashion_mnist"):
        _write_idx(directory / name, rng)
    return directory


def _write_omniglot(folder: Path, form: str, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    classes = [(of_set, name, number) for of_set, name, numbers in CHARACTERS for number in numbers]
    coarse = rng.random((len(classes), 1, 7, 7)) < 0.3
    ink = np.kron(coarse, np.ones((15, 15), bool)) ^ (rng.random((len(classes), DRAWERS, 105, 105)) < 0.02)
    if form == "packed":
        names = [name for _, name, _ in CHARACTERS]
        np.savez_compressed(
            folder / "omniglot_105.npz",
            images_packed=np.packbits(ink, axis=-1),
            alphabets=np.array(names),
            class_alphabet=np.array([names.index(name) for _, name, _ in classes], np.uint8),
            class_character=np.array([number for _, _, number in classes], np.uint8),
            class_set=np.array([of_set for of_set, _, _ in classes], np.uint8),
            class_file_id=np.arange(1, len(classes) + 1, dtype=np.uint16),
        )
        return
    for of_set, set_name in enumerate(SETS):
        pictures = {
            f"{set_name}/{name}/character{number:02d}/{place + 1:04d}_{drawer + 1:02d}.png": _png(ink[place, drawer])
            for place, (own_set, name, number) in enumerate(classes)
            if own_set == of_set
            for drawer in range(DRAWERS)
        }
        _write_pictures(folder, set_name, form, pictures)


def _write_pictures(folder: Path, set_name: str, form: str, pictures: dict[str, bytes]) -> None:
    if form == "zips":
        with zipfile.ZipFile(folder / f"{set_name}.zip", "w") as archive:
            archive.writestr(f"{set_name}/", b"")
            archive.writestr(f"__MACOSX/{set_name}/Greek/character01/._0001_01.png", b"not a picture")
            for path, picture in reversed(pictures.items()):  # the order in an archive means nothing
                archive.writestr(path, picture)
    else:
        for path, picture in pictures.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(picture)


def _png(ink: np.ndarray) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow to write PNGs")
    stream = io.BytesIO()
    image.fromarray(~ink).save(stream, "png")
    return stream.getvalue()


def _write_idx(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    labels = np.tile(np.arange(3, dtype=np.uint8), 9)
    shapes = rng.integers(0, 256, (3, 28, 28))
    images = np.clip(shapes[labels] + rng.integers(-40, 41, (len(labels), 28, 28)), 0, 255).astype(np.uint8)
    for name, array in (("t10k-images-idx3-ubyte.gz", images), ("t10k-labels-idx1-ubyte.gz", labels)):
        (folder / name).write_bytes(gzip.compress(idx(array)))


def idx(array: np.ndarray) -> bytes:
    """An array of unsigned bytes in the IDX format."""
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
