"""Models for other programs, and proof that they compute the same."""
