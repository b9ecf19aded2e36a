"""Results for display: HTML cards for a notebook, and pandas tables."""
