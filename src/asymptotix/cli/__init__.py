"""The command line: the verbs of Python for problems described in TOML.

It reads a problem, calls a verb and prints the result.
"""

from ..core.words import format_number
from .commands import EXAMPLE, app, main
from .problem_files import read_problem
from .tables import show

__all__ = ["EXAMPLE", "app", "format_number", "main", "read_problem", "show"]
