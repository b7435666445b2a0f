"""Views of training: the data before it starts, the run while it trains, and the result."""
