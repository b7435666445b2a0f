"""Converts records to the data that tasks, training and the command line need."""
