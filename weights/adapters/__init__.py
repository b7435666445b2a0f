"""Adapters in the format of PEFT: read, and fitted to the modules of a network."""
