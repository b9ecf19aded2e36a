"""The part that all theories share and that knows no model: problems, descriptions, verbs, results, comparison."""
