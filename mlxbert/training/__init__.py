"""Training: a loop that yields events, the objectives that it trains, and saved states that a run resumes exactly."""
