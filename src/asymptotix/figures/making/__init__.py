"""Making of figures: the registry, stored results, records with verdicts, the gallery, one drawing style."""
