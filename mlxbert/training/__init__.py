"""Training: one loop that yields events, objectives that say what is trained, and what makes a run resume exactly."""
