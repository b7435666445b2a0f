"""Reads the documents of a text corpus from files, and stores their token ids on disk."""
