"""Vocabulary files of a model folder to a `tokenizers` object."""
