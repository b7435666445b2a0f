"""Tiny models, one for each family and head, with their outputs in `transformers`."""
