"""The command line: a problem described in TOML does what the same problem does in Python.

It reads, calls the verbs and prints.
"""

from ..core.words import format_number
from .commands import EXAMPLE, app, main
from .problem_files import read_problem
from .tables import show

__all__ = ["EXAMPLE", "app", "format_number", "main", "read_problem", "show"]
