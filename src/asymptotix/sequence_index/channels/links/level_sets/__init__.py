"""Fast posteriors of links with one output: integrals along those edges of a grid that meet the level set."""
