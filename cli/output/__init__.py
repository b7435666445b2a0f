"""Writes results to files in several formats, in parts that survive an interruption."""
