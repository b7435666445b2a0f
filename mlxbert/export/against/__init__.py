"""Checks vectors that another program computed, and finds out why they differ (see `verify_vectors`)."""
