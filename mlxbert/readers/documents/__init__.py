"""Files that people write to documents: a registry of kinds, and a file for each."""
