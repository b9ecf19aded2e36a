"""One-shot classification of images in context: which of two labelled images does a third one belong to?

A network learns on characters of Omniglot and is asked about characters it never saw (in distribution), and about
digits and clothes (out of distribution). The characters are split 1028 / 172 / 423 into training, validation and test;
the text of the paper has 432 test classes, with which the sum would exceed the 1,623 characters of Omniglot.

Tiberi et al., arXiv:2405.15926, section 4.2 and appendix H. Their code normalises Omniglot by mean .922 and deviation
.084. This is about the mean of black ink on white paper, but the images there have white ink. The effect is small,
because every patch is standardised afterwards. The normalisation then matters only through the small number that layer
normalisation adds to the variance: a patch keeps variance 1 to within 1 % unless it is blank (44 % are) or almost blank
(2 % of the others; 5 % with the measured numbers). ``normalization`` offers both; entries differ by .02 on average. The
authors' sequences out of distribution show images of the MNIST training sets and ask about images of the test sets;
here both are from the test sets, and never the same image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..numerics import checks
from .image_sequences import ImageSequences, cut_into_patches, fixed_order_examples, variance_floor
from .stored import omniglot
from .stored.idx import read_idx
from .stored.locate import stored_file

#: Mean and standard deviation that normalise grey values of Omniglot in [0, 1], ink being 1: values of the authors'
#: code, and values measured on the training classes at 32 x 32 pixels.
NORMALIZATIONS = {"published": (0.922, 0.084), "measured": (0.0782, 0.2230)}
#: Mean and standard deviation of the sets out of distribution. The authors use the usual values, which are correct.
OUT_OF_DISTRIBUTION = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.286, 0.353)}

#: Stream of the task's seed for each set of classes.
_STREAMS = {omniglot.TRAIN: 1, omniglot.VALIDATION: 2, omniglot.TEST: 3, "mnist": 4, "fashion-mnist": 5}
#: Number of classes whose pixels are unpacked together: 64 classes of 20 images take 14 MB.
_CLASSES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class OneShotTask:
    """Data of the one-shot task.

    Attributes
    ----------
    inputs : array (examples, 48, 192)
        Sequences of the training classes; sequences of label +1 come before those of label -1.
    labels : array (examples,)
        +1 or -1.
    validation_inputs, validation_labels, test_inputs, test_labels
        Sequences and labels of the validation classes and of the test classes; no class is in two sets.
    sequences : ImageSequences
        Source of any number of further sequences of the training classes, for gradient descent.
    seed, directory, verify
        Arguments of :func:`one_shot`.
    """

    inputs: np.ndarray
    labels: np.ndarray
    validation_inputs: np.ndarray
    validation_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    sequences: ImageSequences = field(repr=False)
    seed: int
    directory: Path | None
    verify: bool

    def out_of_distribution(self, name: str, count: int = 1000) -> tuple[np.ndarray, np.ndarray]:
        """Return sequences (count, 48, 192) and labels (count,) of two classes of "mnist" or "fashion-mnist".

        The classes are digits 0 and 1, or shirts and trousers. A sequence is an image of the first class, which means
        -1, an image of the second class, which means +1, and the query. Examples of label +1 come first.
        """
        checks.one_of("name", name, tuple(OUT_OF_DISTRIBUTION))
        count = checks.integer("count", count, 2)
        minus, plus = (cut_into_patches(images) for images in self._first_two_classes(name))
        floor = variance_floor(OUT_OF_DISTRIBUTION[name][1])
        return fixed_order_examples(minus, plus, floor, count, [self.seed, _STREAMS[name]])

    def _first_two_classes(self, name: str) -> list[np.ndarray]:
        images, labels = (
            read_idx(stored_file(name, file, self.directory, verify=self.verify))
            for file in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
        )
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(f"{name} must have as many images as labels, got shapes {images.shape} and {labels.shape}")
        classes = [images[labels == label] for label in (0, 1)]
        if min(map(len, classes)) < 2:
            raise ValueError(f"{name} must have two images of each of its first two classes")
        return classes


def one_shot(
    examples: int = 600,
    *,
    validation_examples: int = 1000,
    test_examples: int = 1000,
    seed: int = 0,
    normalization: str = "published",
    directory: Path | None = None,
    verify: bool = True,
) -> OneShotTask:
    """Make the one-shot task of Omniglot; `asymptotix data get omniglot mnist fashion-mnist` fetches its data.

    Parameters
    ----------
    examples, validation_examples, test_examples : int
        Number of fixed sequences of each set of classes, half of each label; an odd number has one more of label +1.
    seed : int
        Seed, with an independent stream for each set.
    normalization : "published" or "measured"
        Whether mean and deviation of Omniglot are those of the authors' code, which do not fit the images, or the
        measured ones.
    directory : path or None
        Directory of the data, see ``tasks.stored.locate``; None: that of ``$ASYMPTOTIX_DATA``, or the cache.
    verify : bool
        Whether files must be the published ones; False accepts stand-ins of the same format.

    Examples
    --------
    >>> task = one_shot(examples=600)                             # doctest: +SKIP
    >>> inputs, labels = task.out_of_distribution("mnist")        # doctest: +SKIP
    """
    counts = {
        omniglot.TRAIN: checks.integer("examples", examples, 2),
        omniglot.VALIDATION: checks.integer("validation_examples", validation_examples, 2),
        omniglot.TEST: checks.integer("test_examples", test_examples, 2),
    }
    seed = checks.integer("seed", seed, 0)
    checks.one_of("verify", verify, (False, True))
    _, deviation = NORMALIZATIONS[checks.one_of("normalization", normalization, tuple(NORMALIZATIONS))]
    images = omniglot.read_omniglot(directory, verify=verify)
    split = images.split
    sets = {
        part: ImageSequences(_patches(images, np.flatnonzero(split == part)), variance_floor(deviation), _STREAMS[part])
        for part in counts
    }
    train, validation, test = (sets[part].examples(count, seed) for part, count in counts.items())
    return OneShotTask(*train, *validation, *test, sets[omniglot.TRAIN], seed, directory, verify)


def _patches(images: omniglot.OmniglotImages, classes: np.ndarray) -> np.ndarray:
    """Return the patches (classes, drawers, 16, 64), uint8, of the images of ``classes``, an array of class numbers."""
    if len(classes) < 2 or images.packed.shape[1] < 2:
        raise ValueError(f"every part must have two classes of two images, got {len(classes)} classes")
    blocks = np.split(classes, range(_CLASSES_AT_ONCE, len(classes), _CLASSES_AT_ONCE))
    return np.concatenate([cut_into_patches(255 * images.pixels(block)) for block in blocks])
