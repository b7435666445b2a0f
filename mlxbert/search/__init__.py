"""Search: finds files and records by meaning and by words, in an index that is a single file."""
