"""Checks of the arrays that users give as networks, data and weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...numerics import checks


def count_of(paths: int) -> str:
    """Return a number of paths as text for a message; from 10^15 on as a power of two, rounded down."""
    return str(paths) if paths < 10**15 else f"2^{paths.bit_length() - 1}"


def require_entries(name: str, x: np.ndarray) -> None:
    if x.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {x.shape}")


def per_layer(name: str, given: object, shape: str) -> Sequence[object]:
    if isinstance(given, np.ndarray | str) or not isinstance(given, Sequence) or not given:
        raise TypeError(f"{name} must be a sequence of arrays {shape}, one per layer, got {kind_of(given)}")
    return given


def checked_tokens(name: str, x: object) -> np.ndarray:
    """Return tokens as finite floats of shape (examples, T, N0)."""
    tokens = checks.array_of_shape(name, x, (None, None, None))
    require_entries(name, tokens)
    return tokens


def labels_of_examples(given: object, examples: int) -> np.ndarray:
    """Return labels as finite floats of shape (examples,) or (examples, outputs)."""
    labels = np.asarray(checks.real_array("labels", given), float)
    if labels.ndim not in (1, 2) or labels.size == 0:
        raise ValueError(f"labels must have shape (examples,) or (examples, outputs), got {labels.shape}")
    if not np.isfinite(labels).all():
        raise ValueError(f"labels must be finite, got {np.count_nonzero(~np.isfinite(labels))} that are not")
    if len(labels) != examples:
        raise ValueError(f"labels must be one per example, got {len(labels)} labels for {examples} inputs")
    return labels


def require_signs(name: str, labels: np.ndarray) -> None:
    """Raise ValueError for labels other than +1 and -1."""
    if wrong := sorted(set(np.unique(labels)) - {-1.0, 1.0}):
        raise ValueError(f"{name} must be +1 or -1, got {', '.join(f'{y:g}' for y in wrong[:5])}")


def refuse_other_classes(labels: np.ndarray) -> None:
    """Raise ValueError for two classes whose labels are not opposite numbers, such as 0 and 1.

    With one output, the sign is the class. The labels of only two examples count as numbers, not as classes. With
    several outputs, the class is the largest output, and any labels are accepted.
    """
    classes = _two_classes(labels)
    if classes is not None and classes[0] != -classes[1]:
        low, high = classes
        raise ValueError(
            f"labels must be -1 and +1 for two classes, got {low:g} and {high:g}: use np.where(labels == {high:g}, 1.0,"
            f" -1.0), or, to fit these two values as numbers, labels - {0.5 * (low + high):g}, because the prior of"
            " the outputs has mean 0"
        )


def require_same_classes(labels: np.ndarray, learned: np.ndarray) -> None:
    """Raise ValueError if the labels ``learned`` are two classes and ``labels`` have any other value."""
    classes = _two_classes(learned)
    if classes is not None and (other := sorted(set(np.unique(labels).tolist()) - set(classes))):
        low, high = classes
        raise ValueError(f"labels must be {low:g} or {high:g}, like those learned from, got {other[0]:g}")


def _two_classes(labels: np.ndarray) -> tuple[float, float] | None:
    """Return the two label values, ascending; None for several outputs, under 3 examples, or not exactly 2 values."""
    if labels.size != len(labels) or len(labels) < 3 or len(values := np.unique(labels)) != 2:
        return None
    return float(values[0]), float(values[1])


def kind_of(x: object) -> str:
    return f"an array of shape {x.shape}" if isinstance(x, np.ndarray) else f"{type(x).__name__}"


def shapes_of(arrays: Sequence[np.ndarray]) -> str:
    return ", ".join(str(array.shape) for array in arrays)
