"""The network, its inputs, and the attended inputs of every path."""
