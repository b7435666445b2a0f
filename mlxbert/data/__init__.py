"""Converts records to the data of tasks, training and the command line."""
