"""Definitions of the numbers in a result: names, symbols, normalisations, references."""
