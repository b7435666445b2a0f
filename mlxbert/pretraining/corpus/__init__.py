"""Corpora: reads text files to documents, and stores documents as token ids on disk."""
