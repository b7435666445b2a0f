"""Vocabulary files."""
