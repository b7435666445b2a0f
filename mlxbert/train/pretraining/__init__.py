"""Pre-training: trains models and vocabularies on plain text."""
