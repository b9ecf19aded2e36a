"""Executors of chunks: this process, a pool of processes on this machine, Dask, or anything with ``submit``."""
