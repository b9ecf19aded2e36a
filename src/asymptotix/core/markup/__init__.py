"""HTML for notebooks: elements such as tables, and the fields of problems, models and algorithms as tables."""
