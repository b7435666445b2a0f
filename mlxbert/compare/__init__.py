"""Comparing two models: what differs between them, by name."""
