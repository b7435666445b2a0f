"""The engine: models on one thread, called from any number of other threads."""
