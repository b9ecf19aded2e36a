"""The one-shot task: what a sequence consists of, told from the tokens alone."""

from __future__ import annotations

import numpy as np
import pytest

from asymptotix.tasks import image_sequences
from asymptotix.tasks.image_sequences import ImageSequences, cut_into_patches, label_vectors, positions, standardized
from asymptotix.tasks.one_shot import NORMALIZATIONS, OUT_OF_DISTRIBUTION, OneShotTask, _patches, one_shot
from asymptotix.tasks.stored import omniglot
from data_stand_ins import published_data, write_stand_in

FLOOR = image_sequences.variance_floor(0.2)
MINUS, PLUS, QUERY = range(3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_stand_in(tmp_path_factory.mktemp("data") / "stand_in")


@pytest.fixture(scope="module")
def task(directory):
    return one_shot(21, validation_examples=12, test_examples=10, seed=3, directory=directory, verify=False)


@pytest.fixture(scope="module")
def sequences():
    """Five classes of four images, a patch of one of which is blank."""
    patches = np.random.default_rng(0).integers(0, 256, (5, 4, 16, 64), dtype=np.uint8)
    patches[2, 1, 7] = 9
    return ImageSequences(patches, FLOOR, stream=1)


def taken_apart(inputs, patches, floor):
    """Class and number of each of the three images, and what label vector it has; every token is accounted for."""
    flat = patches.reshape(-1, 16, 64)
    known = standardized(flat / 255, floor, np)
    images = (np.asarray(inputs, float) - positions()).reshape(len(inputs), 3, 16, 64, 3)
    # A standardised patch has mean 0: what is left of the mean is that of the label vector.
    kinds = np.abs(images.mean(axis=(2, 3, 4))[..., None] - label_vectors().mean(axis=1)).argmin(axis=-1)
    drawn = images - label_vectors()[kinds].reshape(len(inputs), 3, 1, 64, 3)
    np.testing.assert_allclose(drawn, drawn[..., :1] * np.ones(3), atol=1e-5)  # float32 of numbers up to 10
    drawn = drawn[..., 0].reshape(len(inputs), 3, -1)
    found = np.abs(drawn[:, :, None] - known.reshape(len(flat), -1)).max(axis=-1)
    assert (found.min(axis=-1) < 1e-4).all()
    return *np.divmod(found.argmin(axis=-1), patches.shape[1]), kinds


def assert_right(inputs, labels, patches, floor):
    """The query is another image of the class of the labelled image that has its label."""
    classes, drawings, kinds = taken_apart(inputs, patches, floor)
    assert (kinds[:, 2] == QUERY).all()
    assert (np.sort(kinds[:, :2], axis=1) == [MINUS, PLUS]).all()
    assert (classes[:, 0] != classes[:, 1]).all()
    labelled = np.argmax(classes[:, :2] == classes[:, 2:], axis=1)
    rows = np.arange(len(inputs))
    assert (classes[rows, labelled] == classes[:, 2]).all()
    assert (drawings[rows, labelled] != drawings[:, 2]).all()
    np.testing.assert_array_equal(np.where(kinds[rows, labelled] == PLUS, 1, -1), labels)
    return classes, drawings, kinds


def test_positions():
    table = positions()
    assert table.shape == (48, 192)
    assert abs(table.mean()) < 1e-12
    assert table.std() == pytest.approx(1, abs=1e-12)
    # sin and cos of one angle, before the table was standardised: a circle around one centre
    sines, cosines = table[:, 0::2], table[:, 1::2]
    centre, radius = sines[0, 0], cosines[0, 0] - sines[0, 0]
    np.testing.assert_allclose((sines - centre) ** 2 + (cosines - centre) ** 2, radius**2, rtol=1e-12)
    angles = np.arctan2(sines - centre, cosines - centre)[1]
    np.testing.assert_allclose(angles, 10_000.0 ** (-np.arange(96) / 96), rtol=1e-10)


def test_label_vectors_are_normal_and_apart():
    vectors = label_vectors()
    assert vectors.shape == (3, 192)
    np.testing.assert_allclose(vectors @ vectors.T / 192, np.eye(3), atol=5 * np.sqrt(2 / 192))  # five deviations
    assert np.ptp(np.sort(vectors.mean(axis=1))[:2]) > 1e-2  # `taken_apart` tells them by their means


def test_patches_are_cut_row_by_row():
    image = np.arange(32 * 32).reshape(32, 32) % 251
    patches = cut_into_patches(image.astype(np.uint8))
    for place in range(16):
        top, left = 8 * (place // 4), 8 * (place % 4)
        np.testing.assert_array_equal(patches[place], image[top : top + 8, left : left + 8].ravel())


@pytest.mark.parametrize("deviation", [deviation for _, deviation in NORMALIZATIONS.values()])
def test_standardising_is_layer_normalisation_of_normalised_images(deviation):
    patches = np.random.default_rng(0).random((6, 16, 64)) ** 9
    patches[0, :3] = [[0.0], [1.0], [0.3]]
    normalised = np.repeat((patches - 0.922) / deviation, 3, axis=-1)
    centred = normalised - normalised.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(normalised.var(axis=-1, keepdims=True) + 1e-5)
    found = np.repeat(standardized(patches, image_sequences.variance_floor(deviation), np), 3, axis=-1)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert np.abs(found.mean(axis=-1)).max() < 1e-12
    blank = patches.std(axis=-1) == 0
    np.testing.assert_array_equal(found[blank], 0)
    variance = patches[~blank].var(axis=-1)
    floor = 1e-5 * deviation**2
    np.testing.assert_allclose(found[~blank].var(axis=-1), variance / (variance + floor), rtol=1e-10)
    assert found[~blank].var(axis=-1).min() > 0.999


def test_examples_are_right(sequences):
    inputs, labels = sequences.examples(41, seed=2)
    assert inputs.shape == (41, 48, 192)
    assert inputs.dtype == labels.dtype == np.float64
    np.testing.assert_array_equal(labels, [1] * 21 + [-1] * 20)
    assert_right(inputs, labels, sequences.patches, FLOOR)


def test_examples_do_not_depend_on_their_number(sequences):
    few, many = (sequences.examples(count, seed=2)[0] for count in (6, 20))
    np.testing.assert_array_equal(few[:3], many[:3])
    np.testing.assert_array_equal(few[3:], many[10:13])
    np.testing.assert_array_equal(few, sequences.examples(6, seed=2)[0])
    assert not np.array_equal(few, sequences.examples(6, seed=1)[0])


@pytest.fixture(scope="module")
def drawn(sequences):
    import jax

    return jax.jit(ImageSequences.draw, static_argnums=2)(sequences, jax.random.key(1), 400)


def test_draws_are_right_and_fair(sequences, drawn):
    inputs, labels = drawn
    count = len(labels)
    assert inputs.shape == (count, 48, 192)
    assert inputs.dtype == labels.dtype == np.float32
    classes, drawings, kinds = assert_right(inputs, labels, sequences.patches, FLOOR)
    shares = [
        (np.asarray(labels) > 0, 0.5),
        (kinds[:, 0] == PLUS, 0.5),
        (classes[:, 0] == classes[:, 2], 0.5),
        *((classes[:, place] == label, 0.2) for place in range(3) for label in range(5)),
        *((drawings[:, place] == number, 0.25) for place in range(3) for number in range(4)),
    ]
    for seen, share in shares:  # five standard errors
        assert abs(seen.mean() - share) < 5 * np.sqrt(share * (1 - share) / count)
    pairs = {(first, second) for first, second in classes[:, :2]}
    assert len(pairs) == 20  # of 400; the chance that one is missing is below 1e-7


def test_draws_do_not_depend_on_the_batch(sequences, drawn):
    """Nor on where they are drawn: here in a loop on the device, as training does."""
    import jax

    keys = jax.numpy.stack([jax.random.key(2), jax.random.key(1)])
    loop = jax.jit(lambda data: jax.lax.scan(lambda none, key: (none, data.draw(key, 3)), None, keys))
    _, (inputs, labels) = loop(sequences)
    np.testing.assert_array_equal(labels[1], drawn[1][:3])
    np.testing.assert_allclose(inputs[1], drawn[0][:3], atol=1e-5)  # two programs may round otherwise
    assert np.abs(inputs[0] - drawn[0][:3]).max() > 0.1


def test_epoch(sequences, task):
    assert sequences.epoch == 10
    assert task.sequences.epoch == 28  # eight training classes


def test_the_task_is_made_of_its_own_classes(task, directory):
    images = omniglot.read_omniglot(directory, verify=False)
    patches = cut_into_patches(255 * images.pixels(slice(None)))
    floor = image_sequences.variance_floor(0.084)
    used = []
    sets = (
        (task.inputs, task.labels, 21),
        (task.validation_inputs, task.validation_labels, 12),
        (task.test_inputs, task.test_labels, 10),
    )
    for part, (inputs, labels, count) in enumerate(sets):
        assert inputs.shape == (count, 48, 192)
        np.testing.assert_array_equal(labels, np.where(np.arange(count) < (count + 1) // 2, 1, -1))
        classes = assert_right(inputs, labels, patches, floor)[0]  # one table of positions and vectors for all sets
        assert set(images.split[classes.ravel()]) == {part}
        used.append(set(classes.ravel()))
    assert not used[0] & used[1] and not used[0] & used[2] and not used[1] & used[2]  # noqa: PT018
    inputs, labels = task.sequences.examples(20, seed=0)
    drawn = assert_right(inputs, labels, patches, floor)[0]
    assert set(images.split[drawn.ravel()]) == {omniglot.TRAIN}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_out_of_distribution(task, name):
    inputs, labels = task.out_of_distribution(name, count=13)
    np.testing.assert_array_equal(labels, [1] * 7 + [-1] * 6)
    patches = np.stack([cut_into_patches(images) for images in task._first_two_classes(name)])
    floor = image_sequences.variance_floor(OUT_OF_DISTRIBUTION[name][1])
    classes, drawings, kinds = assert_right(inputs, labels, patches, floor)
    np.testing.assert_array_equal(kinds[:, :2], [[MINUS, PLUS]] * 13)
    np.testing.assert_array_equal(classes[:, :2], [[0, 1]] * 13)
    assert len(set(drawings[:7, 2])) == 7  # nine images of a class: none is asked about twice before all were
    again, other = task.out_of_distribution(name, count=13)[0], task.out_of_distribution(name, count=4)[0]
    np.testing.assert_array_equal(inputs, again)
    np.testing.assert_array_equal(inputs[[0, 1, 7, 8]], other)


def test_more_sequences_than_images(task):
    inputs, labels = task.out_of_distribution("mnist", count=40)
    patches = np.stack([cut_into_patches(images) for images in task._first_two_classes("mnist")])
    drawings = assert_right(inputs, labels, patches, image_sequences.variance_floor(0.3081))[1]
    assert np.bincount(drawings[:18, 2]).tolist() == [2] * 9


def test_seeds(task, directory):
    sizes = {"validation_examples": 4, "test_examples": 4, "directory": directory, "verify": False}
    same, other = (one_shot(21, seed=seed, **sizes) for seed in (3, 4))
    np.testing.assert_array_equal(same.inputs, task.inputs)
    assert not np.array_equal(other.inputs, task.inputs)
    assert not np.array_equal(other.out_of_distribution("mnist", 4)[0], task.out_of_distribution("mnist", 4)[0])
    assert same.sequences.patches.tobytes() == other.sequences.patches.tobytes()


def test_all_forms_make_the_same_task(task, tmp_path):
    zipped = write_stand_in(tmp_path / "zips", "zips")
    other = one_shot(21, validation_examples=12, test_examples=10, seed=3, directory=zipped, verify=False)
    for name in ("inputs", "validation_inputs", "test_inputs"):
        np.testing.assert_array_equal(getattr(other, name), getattr(task, name))


def test_normalisations(task, directory):
    measured = one_shot(21, seed=3, normalization="measured", directory=directory, verify=False)
    assert 0 < np.abs(measured.inputs - task.inputs).max() < 0.05  # no patch of the stand-in is almost blank


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": 1}, "examples must be an integer of at least 2"),
        ({"validation_examples": 2.5}, "validation_examples must be an integer"),
        ({"test_examples": 0}, "test_examples must be an integer of at least 2"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"normalization": "none"}, "normalization must be one of 'published', 'measured', got 'none'"),
        ({"verify": 1}, "verify must be one of False, True"),
        ({"verify": True}, "is not the published Omniglot"),
    ],
)
def test_bad_options(options, message, directory):
    with pytest.raises(ValueError, match=message):
        one_shot(**{"directory": directory, "verify": False} | options)


def test_bad_names(task):
    with pytest.raises(ValueError, match="name must be one of 'mnist', 'fashion-mnist', got 'kmnist'"):
        task.out_of_distribution("kmnist")
    with pytest.raises(ValueError, match="count must be an integer of at least 2"):
        task.out_of_distribution("mnist", 1)


def test_sizes_that_cannot_be_are_refused_with_the_estimate(sequences):
    with pytest.raises(MemoryError, match=r"takes .* GiB, and there are .* try fewer examples"):
        sequences.examples(10**9, seed=0)


def test_published_images():
    """A few classes of the published data: cut and resized as Pillow would, and almost what was measured."""
    image = pytest.importorskip("PIL.Image", reason="compares with Pillow")
    images = omniglot.read_omniglot(published_data())
    classes = np.flatnonzero(images.split == omniglot.TRAIN)[::40]
    patches = _patches(images, classes)
    grey = 255 * images.pixels(classes[:2])[:, ::5]
    expected = [
        cut_into_patches(np.asarray(image.fromarray(one).resize((32, 32), image.Resampling.BILINEAR)))
        for some in grey
        for one in some
    ]
    np.testing.assert_array_equal(patches[:2, ::5].reshape(-1, 16, 64), expected)
    mean, deviation = NORMALIZATIONS["measured"]
    # 26 alphabets' classes stand for all: their means scatter by about a tenth
    assert patches.mean() / 255 == pytest.approx(mean, rel=0.1)
    assert patches.std() / 255 == pytest.approx(deviation, rel=0.1)
    sequences = ImageSequences(patches, image_sequences.variance_floor(0.084), stream=1)
    inputs, labels = sequences.examples(6, seed=0)
    classes, _, kinds = taken_apart(inputs, patches, sequences.variance_floor)
    assert (kinds[:, 2] == QUERY).all()
    labelled = np.where(kinds[:, 0] == PLUS, labels > 0, labels < 0)
    np.testing.assert_array_equal(classes[:, 2], np.where(labelled, classes[:, 0], classes[:, 1]))


@pytest.mark.slow
def test_published_task():
    directory = published_data()
    task = one_shot(directory=directory)
    assert isinstance(task, OneShotTask)
    assert task.sequences.epoch == 527_878
    assert task.inputs.shape == (600, 48, 192)
    assert task.validation_inputs.shape == task.test_inputs.shape == (1000, 48, 192)
    grey = task.sequences.patches / 255
    np.testing.assert_allclose([grey.mean(), grey.std()], NORMALIZATIONS["measured"], atol=5e-5)  # as it is rounded
    for name in OUT_OF_DISTRIBUTION:
        inputs, labels = task.out_of_distribution(name)
        assert inputs.shape == (1000, 48, 192)
        assert labels.sum() == 0
