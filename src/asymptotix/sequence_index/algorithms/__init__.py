"""Algorithms at finite size on the data of a model: message passing, which state evolution describes, and SGD."""
