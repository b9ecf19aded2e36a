"""HTML for notebooks: its elements, and descriptions as tables. It does not depend on results."""
