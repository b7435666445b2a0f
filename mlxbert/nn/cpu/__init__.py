"""The fast path of a CPU."""
