"""Checks the data of a run before training, and reports on them."""
