"""Programs of functions that the user writes: compilation, snapshots and listings."""
