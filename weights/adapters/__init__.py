"""Adapters in the format of PEFT: reading them, and matching them to the modules of a network."""
