"""Builds a `tokenizers` object from the vocabulary files of a model folder."""
