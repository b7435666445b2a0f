"""How training looks: the data before it, the run while it continues, and what it came to."""
