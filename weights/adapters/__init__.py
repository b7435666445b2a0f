"""Reads adapters in the format of PEFT, and matches them to the modules of a network."""
