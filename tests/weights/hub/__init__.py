"""The hub and its cache."""
