"""Pre-training: from plain text to a model that has learned the language of it."""
