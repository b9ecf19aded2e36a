"""Results for display: cards for a notebook, pandas tables."""
