"""One-shot classification of images in context: which of two labelled images does a third one belong to?

A network learns on characters of Omniglot and is asked about characters it never saw (in distribution), and about
digits and clothes (out of distribution). The characters are split 1028 / 172 / 423 into training, validation and test;
the text of the paper has 432 test classes, which is a slip: there would be more than the 1,623 that there are.

Tiberi et al., arXiv:2405.15926, section 4.2 and appendix H. Their code normalises Omniglot by mean .922 and deviation
.084, which is about the mean of black ink on white paper, while ink is white where it is used. That does no harm: every
patch is standardised afterwards, and what was subtracted and divided by before enters only by way of the small number
that layer normalisation adds to the variance: a patch keeps variance 1 to within 1 % unless it is blank (44 % are) or
almost blank (2 % of the others; 5 % with the right numbers). Both ways are here; entries differ by .02 on average. The
authors' sequences out of distribution show images of the MNIST training sets and ask about those of the test sets; here
both are of the test sets, and never the same image.
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

#: Mean and standard deviation of Omniglot by which grey values in [0, 1] are normalised, ink being 1: those of the
#: authors' code, and what the training classes have at 32 x 32 pixels.
NORMALIZATIONS = {"published": (0.922, 0.084), "measured": (0.0782, 0.2230)}
#: The same for the sets out of distribution; the published ones are the usual ones, and right.
OUT_OF_DISTRIBUTION = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.286, 0.353)}

#: Streams of the task's seed: what is drawn from each.
_STREAMS = {omniglot.TRAIN: 1, omniglot.VALIDATION: 2, omniglot.TEST: 3, "mnist": 4, "fashion-mnist": 5}
#: Classes whose pixels are unpacked together: 64 of 20 images take 14 MB.
_CLASSES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class OneShotTask:
    """Data of the one-shot task.

    Attributes
    ----------
    inputs : array (examples, 48, 192)
        Sequences of the training classes; those of label +1 come before those of label -1.
    labels : array (examples,)
        +1 or -1.
    validation_inputs, validation_labels, test_inputs, test_labels
        The same of the validation and of the test classes, which have no class in common with the others.
    sequences : ImageSequences
        As many more sequences of the training classes as one likes, for gradient descent.
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
        """Sequences (count, 48, 192) and labels of the first two classes of ``"mnist"`` or ``"fashion-mnist"``.

        Digits 0 and 1, shirts and trousers: an image of the first class, which means -1, one of the second, which means
        +1, and the query. The examples of label +1 come first.
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
    """Make the one-shot task of Omniglot, which `asymptotix data get omniglot mnist fashion-mnist` fetches.

    Parameters
    ----------
    examples, validation_examples, test_examples : int
        Fixed sequences of each set of classes; half of each label, of an odd number label +1 gets one more.
    seed : int
        The sets have independent streams of it.
    normalization : "published" or "measured"
        The authors' mean and deviation of Omniglot, which are not those of the images they are used on, or the right
        ones.
    directory : path or None
        Where the data lie, see ``tasks.stored.locate``; None: where ``$ASYMPTOTIX_DATA`` says, or in the cache.
    verify : bool
        Whether files must be the published ones. False takes a stand-in of the same format.

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
    """Patches (classes, drawers, 16, 64) of some classes."""
    if len(classes) < 2 or images.packed.shape[1] < 2:
        raise ValueError(f"every part must have two classes of two images, got {len(classes)} classes")
    blocks = np.split(classes, range(_CLASSES_AT_ONCE, len(classes), _CLASSES_AT_ONCE))
    return np.concatenate([cut_into_patches(255 * images.pixels(block)) for block in blocks])
