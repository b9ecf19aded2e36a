"""The dataset behind a result: the names of its rows, outcomes stacked into it, where it comes from, its file."""
