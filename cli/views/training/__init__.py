"""Views of training: the data before it, the run during it, and the result."""
