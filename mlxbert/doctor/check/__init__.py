"""Runs the computations of `doctor --check` on a device, and compares each with a reference."""
