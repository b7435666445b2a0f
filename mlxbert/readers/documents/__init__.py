"""Files of many kinds as texts to search."""
