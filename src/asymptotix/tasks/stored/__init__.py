"""Data sets on the disk: their catalogue, and how they are found, downloaded and read."""
