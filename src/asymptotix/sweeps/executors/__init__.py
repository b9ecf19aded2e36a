"""Who does the chunks: this process, a pool of others on this machine, Dask, or anything with ``submit``."""
