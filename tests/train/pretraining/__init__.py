"""Pre-training."""
