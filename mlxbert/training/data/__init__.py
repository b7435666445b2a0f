"""Checks and reports on the data of a run, before training."""
