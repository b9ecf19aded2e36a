"""How figures are made: a registry, results that are kept, records with verdicts, a gallery, one style."""
