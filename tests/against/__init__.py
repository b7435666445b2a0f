"""Vectors of other programs."""
