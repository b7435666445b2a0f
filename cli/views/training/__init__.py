"""How training looks: the data before it, the run while it goes on, and what it came to."""
