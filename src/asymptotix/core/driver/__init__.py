"""The driver behind the verbs: a table of points is computed, resumed, merged and checkpointed."""
