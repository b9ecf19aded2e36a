"""HTML for notebooks: its parts, and descriptions as tables. Nothing here knows a result."""
