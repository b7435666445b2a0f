"""Training: a loop that yields events, the objectives that it trains, and saved states that resume exactly."""
