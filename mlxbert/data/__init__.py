"""Data from files: what tasks, training and the command line read."""
