"""Compares the facts, tensors and outputs of two model folders, for `verify`."""
