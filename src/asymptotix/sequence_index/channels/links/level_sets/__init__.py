"""Fast posteriors of links with one output: integrals along the edges of a grid that meet the level set."""
