"""Reads and writes the files of models in many formats; also holds the built-in model."""
