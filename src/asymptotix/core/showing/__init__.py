"""Results as people look at them: cards of a notebook, tables of pandas."""
