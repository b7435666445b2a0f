"""The network."""
