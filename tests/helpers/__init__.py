"""Helpers that many tests share: model folders, reference values, running the program, a hub."""
