"""What every theory obeys, and which knows no model: problems, descriptions, the verbs, results, comparison."""
