"""``python -m asymptotix`` is the command line."""

from .cli import main

main()
