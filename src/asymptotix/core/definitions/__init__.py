"""What the numbers of a result mean: names, symbols, normalisations, references."""
