"""Search: finds files and records by meaning and by words, in an index that is a file or a Lance table."""
