"""Builds a `tokenizers` object from the vocabulary files in a model folder."""
