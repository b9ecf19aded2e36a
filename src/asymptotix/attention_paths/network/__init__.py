"""The network, the inputs that it reads, and its attended inputs path by path."""
