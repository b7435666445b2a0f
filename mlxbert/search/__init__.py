"""Search: files and records by meaning and by words, in an index that is one file."""
