"""The fast path on a CPU."""
