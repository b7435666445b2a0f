"""The data of a run: read, split, tokenized, and what is said about them before training."""
