"""Beyond the papers: thresholds over depth, tokens and heads, phase diagrams, spectra of power-law targets."""
