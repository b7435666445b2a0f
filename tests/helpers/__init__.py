"""Shared by many tests: model folders, reference values, the program, a hub."""
