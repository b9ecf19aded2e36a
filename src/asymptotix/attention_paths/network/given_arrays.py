"""Checks of arrays that come one per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def require_entries(name: str, x: np.ndarray) -> None:
    if x.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {x.shape}")


def per_layer(name: str, given: Any, shape: str) -> Sequence[Any]:
    if isinstance(given, np.ndarray | str) or not isinstance(given, Sequence) or not given:
        raise TypeError(f"{name} must be a sequence of arrays {shape}, one per layer, got {kind_of(given)}")
    return given


def kind_of(x: Any) -> str:
    return f"an array of shape {x.shape}" if isinstance(x, np.ndarray) else f"{type(x).__name__}"
