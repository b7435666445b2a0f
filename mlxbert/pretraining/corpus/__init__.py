"""Corpora: text files to documents, documents to token ids on disk."""
