"""The command line, which calls functions such as ``asymptotix.solve`` for problems described in TOML.

A command reads a problem, calls one function and prints the result.
"""

from ..core.words import format_number
from .commands import EXAMPLE, app, main
from .problem_files import read_problem
from .tables import show

__all__ = ["EXAMPLE", "app", "format_number", "main", "read_problem", "show"]
