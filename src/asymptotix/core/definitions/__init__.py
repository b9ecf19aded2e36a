"""Definitions of the variables of a result: names, symbols, normalisations, references."""
