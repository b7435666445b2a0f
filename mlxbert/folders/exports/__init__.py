"""Writes models for other programs."""
