"""Channels of deep attention: one layer, two layers, any depth; and their stability at zero overlap."""
