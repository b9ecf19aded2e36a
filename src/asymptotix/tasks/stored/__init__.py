"""Data sets that lie on the disk: what they are, where they are looked for, how they are fetched and read."""
