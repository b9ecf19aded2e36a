"""Exact high-dimensional theory of attention: learning curves, thresholds and the algorithms that match them.

>>> import numpy as np
>>> import asymptotix as asx
>>> problem = asx.BayesOptimal(asx.DeepAttention(layers=2, tokens=2, rank=1, skip=1.0))
>>> theory = asx.solve(problem, alpha=np.linspace(0.05, 1.6, 32))       # doctest: +SKIP
"""

from __future__ import annotations

import ast
from importlib import import_module, resources
from typing import Any

from ._version import __version__ as __version__


def _homes() -> dict[str, str]:
    """Return public name -> module from which it is imported, relative to this package; read from ``__init__.pyi``."""
    table = ast.parse(resources.files(__name__).joinpath("__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in table.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_HOME = _homes()
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import and return a public name when it is first used, so that `import asymptotix` itself does not load JAX."""
    if name not in _HOME:
        raise AttributeError(f"module 'asymptotix' has no attribute {name!r}")
    home = f"{__name__}.{_HOME[name]}".rstrip(".")
    contents = vars(import_module(home))
    # A public name is an attribute of its home, or a module in it.
    value = contents[name] if name in contents else import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
