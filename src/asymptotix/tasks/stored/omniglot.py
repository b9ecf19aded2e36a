"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people, black on white, 105 x 105 pixels.

The data are read in one of three forms: the packed ``omniglot_105.npz``, the two zips of PNGs as published, or the
folders that the zips unpack to. All forms give the same arrays, and one checksum of this content is verified. A
repacked zip, or folders, are therefore as good as the original.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .catalogue import stored_set
from .locate import not_found, places

PACKED = "omniglot_105.npz"
SETS = ("images_background", "images_evaluation")
#: SHA-256 of names, positions and pixels of all images: see `OmniglotImages.sha256`.
CONTENT_SHA256 = "98395b932fbda55424c75128dd4079f50529921c0d671bf792609f4089d62edb"

TRAIN, VALIDATION, TEST = 0, 1, 2
#: The split of Vinyals et al., arXiv:1606.04080, as the few-shot literature uses it, has 1028 / 172 / 423 classes.
#: These alphabets are for validation; the evaluation set after the 41st character of Gurmukhi is for testing.
VALIDATION_ALPHABETS = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
LAST_TRAINING_CHARACTER = ("Gurmukhi", 41)

_PNG = re.compile(r"(?:.*/)?(?P<alphabet>[^/]+)/character(?P<character>\d+)/(?P<file>\d+)_(?P<drawer>\d+)\.png")
#: Errors that the readers of zips, arrays and PNGs (Pillow: SyntaxError) raise for damaged bytes.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, OSError, SyntaxError)


@dataclass(frozen=True, eq=False)
class OmniglotImages:
    """All drawings of Omniglot. A class is a character; classes are sorted by set, alphabet, character.

    Attributes
    ----------
    packed : uint8 array (classes, drawers, height, ceil(width / 8))
        One bit per pixel, ink is 1; see `pixels`. Images are square.
    alphabets : str array
        Names of the alphabets, those of the background set first.
    class_alphabet, class_character, class_set, class_file : arrays (classes,)
        Index in ``alphabets``; number in the alphabet, from 1; 0 background, 1 evaluation; first number of PNGs' names.
    """

    packed: np.ndarray
    alphabets: np.ndarray
    class_alphabet: np.ndarray
    class_character: np.ndarray
    class_set: np.ndarray
    class_file: np.ndarray

    @property
    def split(self) -> np.ndarray:
        """Split of the classes: array (classes,) of TRAIN, VALIDATION or TEST."""
        names = self.alphabets[self.class_alphabet]
        last, character = LAST_TRAINING_CHARACTER
        after = (names > last) | ((names == last) & (self.class_character > character))
        test = (self.class_set == 1) & after
        return np.where(test, TEST, np.where(np.isin(names, VALIDATION_ALPHABETS), VALIDATION, TRAIN)).astype(np.uint8)

    def pixels(self, classes: np.ndarray | slice) -> np.ndarray:
        """Return the images (classes, drawers, height, width) of some classes, uint8 of 0 and 1, ink is 1."""
        return np.unpackbits(self.packed[classes], axis=-1, count=self.packed.shape[2])

    def sha256(self) -> str:
        """Return the SHA-256 (hexadecimal) of names, classes and pixels, which is the same for all forms of files."""
        digest = hashlib.sha256("\n".join(self.alphabets.tolist()).encode())
        for numbers in (self.class_alphabet, self.class_character, self.class_set, self.class_file):
            digest.update(np.ascontiguousarray(numbers, "<u2").data)
        digest.update(np.ascontiguousarray(self.packed).data)
        return digest.hexdigest()


def read_omniglot(directory: Path | None = None, *, verify: bool = True) -> OmniglotImages:
    """Read Omniglot from ``directory``, ``$ASYMPTOTIX_DATA`` or the cache, in any of its forms.

    The data may be in the folder ``omniglot`` of the directory or in the directory itself. PNGs need Pillow and take
    some seconds.

    Raises
    ------
    FileNotFoundError
        If there are no data. The message names the places searched and the command that gets the data.
    ValueError
        If a file is damaged, or with ``verify`` if the content is not the published one.
    """
    place, sources = omniglot_sources(directory)
    said = " and ".join(map(str, sources))
    remedy = f"remove what is damaged and get it anew with: asymptotix data get omniglot --to {place}"
    try:
        images = _read_packed(sources[0]) if len(sources) == 1 else _read_pngs(sources)
    except _DAMAGED as error:
        raise ValueError(f"{said} cannot be read: {error}; {remedy}") from error
    if verify and images.sha256() != CONTENT_SHA256:
        raise ValueError(f"{said} is not the published Omniglot; {remedy}")
    return images


def omniglot_sources(directory: Path | None = None) -> tuple[Path, list[Path]]:
    """Return the directory in which Omniglot was found, and its files: one packed file, or a zip or folder per set."""
    owner = stored_set("omniglot")
    looked = places(directory)
    for place in looked.values():
        for folder in (place / owner.folder, place):
            if sources := _sources(folder):
                return place, sources
    what = f"{owner.folder}/ with {PACKED}, or with {' and '.join(SETS)} (zips, or unpacked)"
    raise not_found(owner, what, looked)


def _sources(folder: Path) -> list[Path]:
    """Return the paths of Omniglot in ``folder``: one packed file, or a zip or folder per set; [] if one is missing."""
    if (folder / PACKED).is_file():
        return [folder / PACKED]
    found = []
    for name in SETS:
        zipped, unpacked = folder / f"{name}.zip", folder / name
        if not zipped.is_file() and not unpacked.is_dir():
            return []
        found.append(zipped if zipped.is_file() else unpacked)
    return found


def _read_packed(path: Path) -> OmniglotImages:
    names = ("images_packed", "alphabets", "class_alphabet", "class_character", "class_set", "class_file_id")
    with np.load(path, allow_pickle=False) as arrays:
        images = OmniglotImages(*(arrays[name] for name in names))
    if images.packed.ndim != 4 or len({len(images.packed), *map(len, _per_class(images))}) != 1:
        raise ValueError(f"the arrays of {path} do not fit together")
    return images


def _per_class(images: OmniglotImages) -> tuple[np.ndarray, ...]:
    return images.class_alphabet, images.class_character, images.class_set, images.class_file


class _Drawing(NamedTuple):
    """One drawing: set (0 or 1), alphabet, character, drawer, first number in the file's name, bytes of the PNG."""

    of_set: int
    alphabet: str
    character: int
    drawer: int
    file: int
    png: bytes


def _read_pngs(sources: list[Path]) -> OmniglotImages:
    drawings = sorted(drawing for number, source in enumerate(sources) for drawing in _drawings(number, source))
    classes = sorted({drawing[:3]: drawing.file for drawing in drawings}.items())
    drawers = len(drawings) // max(len(classes), 1)
    expected = [(*key, drawer) for key, _ in classes for drawer in range(1, drawers + 1)]
    if not classes or [drawing[:4] for drawing in drawings] != expected:
        raise ValueError(f"there are {len(drawings):,} images of {len(classes):,} characters, not equally many of each")
    packed = np.stack([_inked(drawing) for drawing in drawings])
    names = sorted({key[:2] for key, _ in classes})
    return OmniglotImages(
        packed.reshape(len(classes), drawers, *packed.shape[1:]),
        np.array([name for _, name in names]),
        np.array([names.index(key[:2]) for key, _ in classes], np.uint8),
        np.array([character for (_, _, character), _ in classes], np.uint8),
        np.array([of_set for (of_set, _, _), _ in classes], np.uint8),
        np.array([file for _, file in classes], np.uint16),
    )


def _drawings(of_set: int, source: Path) -> Iterator[_Drawing]:
    """Yield the drawings of the set number ``of_set`` from its zip or folder ``source``; other files are ignored."""
    for name, png in _members(source):
        if found := _PNG.fullmatch(name):
            character, drawer, file = (int(found[part]) for part in ("character", "drawer", "file"))
            yield _Drawing(of_set, found["alphabet"], character, drawer, file, png)


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in source.glob("*/character*/*.png"):
            yield path.relative_to(source).as_posix(), path.read_bytes()
    else:
        with zipfile.ZipFile(source) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".png"):
                    yield member.filename, archive.read(member)


def _inked(drawing: _Drawing) -> np.ndarray:
    """Return the image of a PNG, uint8 (height, ceil(width / 8)): one bit per pixel, ink 1; in the PNG paper is 1."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNGs are read with Pillow: pip install 'asymptotix[data]'") from error

    with Image.open(io.BytesIO(drawing.png)) as image:
        paper = np.asarray(image.convert("1", dither=Image.Dither.NONE))
    if paper.shape[0] != paper.shape[1]:
        raise ValueError(f"images must be square, got {paper.shape}")
    return np.packbits(~paper, axis=-1)
