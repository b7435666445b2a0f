"""Training: a loop that yields events, the objectives that it optimizes, and saved states for exact resumption."""
